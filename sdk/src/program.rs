//! program
