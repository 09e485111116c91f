//! Gives the shared library the name under which programs ask for it.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Before 1.0 each minor version may change the interface, so each has a name of its own.
    let version =
        |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let name = match version("MAJOR").as_str() {
        "0" => format!("libextant.so.0.{}", version("MINOR")),
        major => format!("libextant.so.{major}"),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
}
