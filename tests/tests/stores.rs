//! Stores on real S3 servers, through faults, and a run that lives on one. Built and run by
//! `cargo xtask stores` alone, which installs the servers.

#[path = "stores/faults.rs"]
mod faults;
#[path = "stores/models.rs"]
mod models;
#[path = "stores/refusals.rs"]
mod refusals;
#[path = "stores/servers.rs"]
mod servers;
#[path = "stores/training.rs"]
mod training;

use std::time::Duration;

use training_gym_core::store::{S3Limits, S3Store};

/// Limits under which a test sees an end soon.
fn hasty() -> S3Limits {
    S3Limits {
        attempts: 6,
        pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        patience: Duration::from_secs(20),
        attempt: Duration::from_secs(2),
        slowest: 4 << 20,
        stall: Duration::from_secs(2),
        ..S3Limits::default()
    }
}

fn open(url: &str) -> S3Store {
    assert!(
        std::env::var_os("AWS_ACCESS_KEY_ID").is_some(),
        "AWS_ACCESS_KEY_ID is not set: run `cargo xtask stores`, which sets what these tests need"
    );
    S3Store::within(url, hasty()).expect("a store's URL")
}
