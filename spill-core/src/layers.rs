//! The built-in layers around a store.
