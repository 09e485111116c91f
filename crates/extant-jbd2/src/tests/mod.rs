//! Tests of the writing half.
