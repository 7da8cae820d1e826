//! One suite every store passes.
