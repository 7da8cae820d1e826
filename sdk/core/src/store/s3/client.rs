//! The client: made when it is first needed, once for each tokio runtime that uses the store.
//!
//! A pooled connection is driven by a task of the runtime that opened it, so a client must not outlive
//! its runtime: a program whose runtimes come and go gets a client for each.

use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    Builder, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use tokio::runtime::{Handle, Id};

use super::limits::S3Limits;
use super::profile::{Checksums, Profile};

/// Runtimes whose clients are kept.
const RUNTIMES: usize = 4;
/// The region of servers that have none.
const ANY_REGION: &str = "us-east-1";

/// The clients, newest last.
#[derive(Debug, Default)]
pub(super) struct Clients {
    made: tokio::sync::Mutex<Vec<(Id, Client)>>,
}

impl Clients {
    /// The client of this runtime.
    pub(super) async fn of_this_runtime(&self, profile: &Profile, limits: &S3Limits) -> Client {
        let runtime = Handle::current().id();
        let mut made = self.made.lock().await;
        if let Some((_, client)) = made.iter().find(|(of, _)| *of == runtime) {
            return client.clone();
        }
        let client = make(profile, limits).await;
        if made.len() == RUNTIMES {
            made.remove(0);
        }
        made.push((runtime, client.clone()));
        client
    }
}

async fn make(profile: &Profile, limits: &S3Limits) -> Client {
    let own_endpoint = profile.endpoint.is_some() || endpoint_of_environment().is_some();
    let region = match (&profile.region, own_endpoint) {
        (Some(region), _) => RegionProviderChain::first_try(Region::new(region.clone())),
        // Without asking the machine's metadata service, which is not there in most such places.
        (None, true) => RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
            .or_else(ProfileFileRegionProvider::new())
            .or_else(Region::new(ANY_REGION)),
        (None, false) => RegionProviderChain::default_provider().or_else(Region::new(ANY_REGION)),
    };
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).region(region);
    if let Some(endpoint) = &profile.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    let chain = loader.load().await;
    let own_endpoint = own_endpoint || chain.endpoint_url().is_some();
    let mut settings = Builder::from(&chain)
        // Attempts are ours: they know what a conditional write that landed looks like.
        .retry_config(RetryConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(limits.connect)
                // Holds the sending of a part, too: the attempt's own time, which is shorter, is in `requests`.
                .read_timeout(limits.longest_attempt())
                .operation_attempt_timeout(limits.longest_attempt() + Duration::from_secs(1))
                .build(),
        )
        .stalled_stream_protection(StalledStreamProtectionConfig::enabled().grace_period(limits.stall).build())
        .force_path_style(profile.path_style.unwrap_or(own_endpoint));
    // Unset, they are off, on AWS too: requests are signed over their content, and objects carry a sha256 of their
    // own; a server that knows no additional checksums refuses them, or stores their framing as content.
    let (request, response) = match profile.checksums {
        Some(Checksums::WhenSupported) => {
            (RequestChecksumCalculation::WhenSupported, ResponseChecksumValidation::WhenSupported)
        }
        Some(Checksums::WhenRequired) | None => {
            (RequestChecksumCalculation::WhenRequired, ResponseChecksumValidation::WhenRequired)
        }
    };
    settings = settings.request_checksum_calculation(request).response_checksum_validation(response);
    Client::from_conf(settings.build())
}

/// The endpoint that the SDK's own variables name.
pub(super) fn endpoint_of_environment() -> Option<String> {
    let named = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    named("AWS_ENDPOINT_URL_S3").or_else(|| named("AWS_ENDPOINT_URL"))
}
