//! Rings, from outside.

mod basics;
mod cuts;
mod futures;
mod held;
mod lane;
mod meets;
mod pitfalls;
mod requests;
mod runway;
mod support;
mod throttle;
