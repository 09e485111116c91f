//! Names of images in clusters.

use std::fmt::{self, Write as _};

use crate::error::RbdError;

/// Longest address, in bytes.
const ADDRESS_MAX: usize = 4096;
/// How an address is made.
const FORM: &str = "rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][:OPTION=VALUE...]";
/// Options whose values are nobody's business.
const SECRETS: [&str; 1] = ["key"];

/// Address of an image: `rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][:OPTION=VALUE...]`, as qemu has it.
///
/// A backslash takes the meaning from the character behind it: `\:`, `\@`, `\/`, `\=`, `\\`. The
/// option `id` is the name of the user without `client.`, `conf` a configuration file; all others
/// are options of Ceph, such as `mon_host` and `keyring`.
///
/// It is shown without the option `key`, which is a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) pool: String,
    pub(crate) namespace: Option<String>,
    pub(crate) image: String,
    pub(crate) snapshot: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) conf: Option<String>,
    /// Options of Ceph, in their order.
    pub(crate) options: Vec<(String, String)>,
    shown: String,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// [`RbdError::Address`].
    ///
    /// ```
    /// use extant_rbd::Address;
    /// let address = Address::parse("rbd:pool/image@before:id=admin:conf=/etc/ceph/ceph.conf")?;
    /// assert_eq!(address.snapshot(), Some("before"));
    /// assert!(Address::parse("rbd:image").is_err());
    /// # Ok::<(), extant_rbd::RbdError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Address, RbdError> {
        // A password is not repeated in messages.
        let wrong = |what: &str| RbdError::Address {
            address: match text.contains("key=") {
                true => "rbd:...".to_owned(),
                false => text.chars().take(200).collect(),
            },
            what: what.to_owned(),
        };
        if text.len() > ADDRESS_MAX {
            return Err(wrong("it is longer than 4096 bytes"));
        }
        if text.contains('\0') {
            return Err(wrong("there is a zero byte in it"));
        }
        let rest = text.strip_prefix("rbd:").ok_or_else(|| wrong(FORM))?;
        let mut fields = split(rest, ':').ok_or_else(|| wrong("it ends with a backslash"))?;
        let options = fields.split_off(1);
        let name = fields.pop().unwrap_or_default();
        let parts = |text: &str, at: char| split(text, at).unwrap_or_default();
        let (name, snapshot) = match parts(&name, '@').as_slice() {
            [name] => (name.clone(), None),
            [name, snapshot] => (name.clone(), Some(plain(snapshot))),
            _ => return Err(wrong("it has more than one @: write those of a name as \\@")),
        };
        let (pool, namespace, image) = match parts(&name, '/').as_slice() {
            [pool, image] => (plain(pool), None, plain(image)),
            [pool, namespace, image] => (plain(pool), Some(plain(namespace)), plain(image)),
            _ => return Err(wrong(FORM)),
        };
        let names = [Some(&pool), namespace.as_ref(), Some(&image), snapshot.as_ref()];
        if names.into_iter().flatten().any(String::is_empty) {
            return Err(wrong(&format!("a name is missing: {FORM}")));
        }
        let mut address = Address {
            pool,
            namespace,
            image,
            snapshot,
            id: None,
            conf: None,
            options: Vec::new(),
            shown: String::new(),
        };
        let mut seen: Vec<String> = Vec::new();
        for option in options {
            let (key, value) = match split(&option, '=').unwrap_or_default().split_first() {
                Some((key, rest)) if !key.is_empty() && !rest.is_empty() => {
                    // Whatever is behind the first = is the value.
                    (plain(key), plain(&option[key.len() + 1..]))
                }
                _ => {
                    return Err(wrong(
                        "what follows the name is OPTION=VALUE, and : is written \\: there",
                    ));
                }
            };
            // So none begins like a path behind the address.
            let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
            if !key.chars().all(is_word) {
                return Err(wrong("the name of an option is of letters, digits, _, - and ."));
            }
            if seen.contains(&key) {
                return Err(wrong(&format!("the option {key} is there twice")));
            }
            seen.push(key.clone());
            match key.as_str() {
                "id" => address.id = Some(value),
                "conf" => address.conf = Some(value),
                _ => address.options.push((key, value)),
            }
        }
        address.shown = address.text();
        Ok(address)
    }

    /// The snapshot that is meant, if it is one. It can only be read.
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// One way to write it, without secrets.
    fn text(&self) -> String {
        let mut text = format!("rbd:{}/", escaped(&self.pool, "/"));
        for name in self.namespace.iter() {
            text += &format!("{}/", escaped(name, "/"));
        }
        text += &escaped(&self.image, "/");
        if let Some(snapshot) = &self.snapshot {
            // Writing to a string does not fail.
            let _ = write!(text, "@{}", escaped(snapshot, "/"));
        }
        let named = [("id", &self.id), ("conf", &self.conf)];
        let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let others = self.options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in named.chain(others).filter(|(key, _)| !SECRETS.contains(key)) {
            let _ = write!(text, ":{}={}", key, escaped(value, ""));
        }
        text
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

/// Cuts at each `at` that has no backslash before it; the backslashes stay. `None` if one has nothing behind it.
fn split(text: &str, at: char) -> Option<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == at {
            parts.push(String::new());
            continue;
        }
        let last = parts.last_mut()?;
        last.push(letter);
        if letter == '\\' {
            last.push(letters.next()?);
        }
    }
    Some(parts)
}

/// Takes the backslashes out.
fn plain(text: &str) -> String {
    let mut letters = text.chars();
    let mut out = String::new();
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

/// Puts backslashes before what would mean something.
fn escaped(text: &str, more: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if matches!(letter, '\\' | ':' | '@') || more.contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    #[test]
    fn addresses_are_read_in_parts() {
        let read = |text: &str| {
            let a = Address::parse(text).unwrap();
            (a.pool, a.namespace, a.image, a.snapshot, a.id, a.conf, a.options)
        };
        let some = |text: &str| Some(text.to_owned());
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read("rbd:p/i"), ("p".into(), None, "i".into(), None, None, None, vec![]));
        assert_eq!(
            read("rbd:p/n/i@s:id=admin:conf=/etc/ceph/x=y.conf:mon_host=[v2\\:10.0.0.1\\:3300/0]"),
            (
                "p".into(),
                some("n"),
                "i".into(),
                some("s"),
                some("admin"),
                some("/etc/ceph/x=y.conf"),
                vec![pair("mon_host", "[v2:10.0.0.1:3300/0]")]
            )
        );
        assert_eq!(
            read("rbd:p\\/q/a\\@b\\:c\\\\@s\\/t"),
            ("p/q".into(), None, "a@b:c\\".into(), some("s/t"), None, None, vec![])
        );
        for wrong in [
            "rbd:",
            "rbd:p",
            "rbd:p/",
            "rbd:/i",
            "rbd:p//i",
            "rbd:p/i@",
            "rbd:p/i@a@b",
            "rbd:a/b/c/d",
            "rbd:p/i:",
            "rbd:p/i:x",
            "rbd:p/i:=x",
            "rbd:p/i:id=a:id=b",
            "rbd:p/i:/a=b",
            "rbd:p/i:\\=a=b",
            "rbd:p/i\\",
            "rbd:p/i:a=b\\",
            "nbd://a",
            "rbd:p/i\0",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Address::parse(&format!("rbd:p/{}", "i".repeat(4096))).is_err());
    }

    #[test]
    fn whatever_is_read_is_shown_as_the_same_and_the_rest_is_refused() {
        let mut random = Prng::new(7);
        let letters = ["\\", ":", "@", "/", "=", "a", "b", "key", "id", "\u{e4}", "rbd:", " "];
        let mut good = 0;
        for _ in 0..200_000 {
            let count = random.below(14);
            let pick = |_| letters[random.below(letters.len() as u64) as usize];
            let text = format!("rbd:a/{}", (0..count).map(pick).collect::<String>());
            let Ok(address) = Address::parse(&text) else { continue };
            let again = Address::parse(&address.to_string()).unwrap();
            let without = |address: &Address| {
                let mut address = address.clone();
                address.options.retain(|(key, _)| key != "key");
                address
            };
            assert_eq!(without(&address), again, "{text}");
            good += 1;
        }
        assert!(good > 1000, "{good}");
    }

    #[test]
    fn what_is_shown_means_the_same_and_has_no_password() {
        for text in [
            "rbd:p/i",
            "rbd:p/n/i@s:id=admin:conf=/etc/ceph/c=d.conf:mon_host=a\\:1",
            "rbd:p\\/q/a\\@b\\:c\\\\@s\\/t:rbd_cache=false",
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(Address::parse(&address.to_string()).unwrap(), address);
        }
        let secret = Address::parse("rbd:p/i:key=AQB==:id=x").unwrap();
        assert_eq!(secret.to_string(), "rbd:p/i:id=x");
        assert_eq!(secret.options, [("key".to_owned(), "AQB==".to_owned())]);
        assert!(!format!("{secret:?}").contains("AQB"));
        let wrong = Address::parse("rbd:p/i@:key=AQB==").unwrap_err().to_string();
        assert!(!wrong.contains("AQB"), "{wrong}");
    }
}
