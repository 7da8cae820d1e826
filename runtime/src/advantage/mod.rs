//! advantage
