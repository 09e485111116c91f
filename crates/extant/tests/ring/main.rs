//! Rings, from outside.

mod basics;
mod futures;
mod held;
mod pitfalls;
mod requests;
mod support;
mod throttle;
