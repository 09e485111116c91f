//! Signed addresses of one object.

use std::time::Duration;

use extant_sync::{Mutex, Rank};
use jiff::Timestamp;
use rusty_s3::actions::{GetObject, S3Action};
use rusty_s3::{Bucket, UrlStyle};

use super::account::{Account, is_region};
use super::address::ObjectAddress;
use crate::error::HttpError;

/// How long a signed address is good for. Longer than the time limit of any request, and short, because it ends in the
/// logs of the server.
const GOOD_FOR: Duration = Duration::from_secs(900);

/// Signs addresses of an object.
pub(crate) struct Signer {
    address: ObjectAddress,
    account: Account,
    bucket: Mutex<Bucket>,
}

impl Signer {
    /// # Errors
    ///
    /// [`HttpError::Account`]: of bucket and endpoint no URL can be made.
    pub(crate) fn new(address: &ObjectAddress, account: &Account) -> Result<Signer, HttpError> {
        let bucket = bucket_in(address, account, &account.region)?;
        let (address, account) = (address.clone(), account.clone());
        Ok(Signer { address, account, bucket: Mutex::new(Rank::Leaf, bucket) })
    }

    pub(crate) fn address(&self) -> &ObjectAddress {
        &self.address
    }

    /// Returns whether requests are signed.
    pub(crate) fn signs(&self) -> bool {
        self.account.keys.is_some()
    }

    /// Returns the URL of the object, without a signature.
    pub(crate) fn url(&self) -> String {
        self.bucket.lock().object_url(self.address.key()).into()
    }

    /// Returns the URL of the object for a request at `now`, in seconds since 1970.
    pub(crate) fn signed(&self, now: i64) -> String {
        let bucket = self.bucket.lock().clone();
        let time = Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let action = GetObject::new(&bucket, self.account.keys.as_ref(), self.address.key());
        action.sign_with_time(GOOD_FOR, &time).into()
    }

    /// Goes on in another region, which an answer names; `false` if that is no other one.
    pub(crate) fn move_to(&self, region: &str) -> bool {
        let mut bucket = self.bucket.lock();
        if !is_region(region) || bucket.region() == region {
            return false;
        }
        match bucket_in(&self.address, &self.account, region) {
            Ok(moved) => *bucket = moved,
            Err(_) => return false,
        }
        true
    }
}

/// Returns the bucket as it is in a region.
fn bucket_in(
    address: &ObjectAddress,
    account: &Account,
    region: &str,
) -> Result<Bucket, HttpError> {
    let name = address.bucket();
    let wrong = |what: String| HttpError::Account { what };
    let (endpoint, style) = match &account.endpoint {
        Some(endpoint) => (endpoint.clone(), UrlStyle::Path),
        None if !cfg!(feature = "tls") => {
            let what = "AWS is asked over https, which this program was built without (the feature \"tls\")";
            return Err(wrong(what.to_owned()));
        }
        None => {
            let end = if region.starts_with("cn-") { ".cn" } else { "" };
            let host = format!("https://s3.{region}.amazonaws.com{end}");
            let url = host.parse().map_err(|error| wrong(format!("{host}: {error}")))?;
            // Certificates do not cover names with dots, nor hosts capital letters and underscores.
            let is_plain = |letter: char| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'
            };
            let style = match name.chars().all(is_plain) {
                true => UrlStyle::VirtualHost,
                false => UrlStyle::Path,
            };
            (url, style)
        }
    };
    Bucket::new(endpoint, style, name.to_owned(), region.to_owned()).map_err(|error| {
        wrong(format!("the endpoint has no place for the bucket {name}: {error:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(text: &str, endpoint: Option<&str>) -> Result<Signer, HttpError> {
        let account = Account::anonymous(endpoint, Some("eu-west-1"))?;
        Signer::new(&ObjectAddress::parse(text)?, &account.with_keys("ID", "secret", None))
    }

    #[test]
    fn the_host_is_that_of_the_endpoint_and_a_region_cannot_make_it_another() {
        let own = signer("s3://images/a b?#.img", Some("http://127.0.0.1:9000/s3")).unwrap();
        assert_eq!(own.url(), "http://127.0.0.1:9000/s3/images/a%20b%3F%23.img");
        assert!(own.move_to("eu-north-1") && !own.move_to("eu-north-1"));
        assert_eq!(own.url(), "http://127.0.0.1:9000/s3/images/a%20b%3F%23.img");
        let signed = own.signed(1_369_353_600);
        assert!(signed.contains("20130524%2Feu-north-1%2Fs3"), "{signed}");
        assert!(!signed.contains("secret"), "{signed}");
        for region in ["", "evil.example/", "a@evil", "eu-west-1\r\n"] {
            assert!(!own.move_to(region), "{region}");
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn buckets_at_aws_are_named_in_the_host_where_certificates_cover_it() {
        for (text, url) in [
            ("s3://images/a", "https://images.s3.eu-west-1.amazonaws.com/a"),
            ("s3://my.images/a", "https://s3.eu-west-1.amazonaws.com/my.images/a"),
        ] {
            assert_eq!(signer(text, None).unwrap().url(), url);
        }
        let moving = signer("s3://images/a", None).unwrap();
        assert!(moving.move_to("cn-north-1"));
        assert_eq!(moving.url(), "https://images.s3.cn-north-1.amazonaws.com.cn/a");
    }
}
