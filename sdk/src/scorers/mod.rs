//! scorers
