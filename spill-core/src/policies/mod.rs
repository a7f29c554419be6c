//! The shipped victim policies.
