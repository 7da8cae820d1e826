//! prelude
