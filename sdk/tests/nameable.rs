//! Everything in a public signature can be named from `training_gym` alone.
//!
//! That no type is public and yet hidden in a private module is the compiler's to say
//! (`unnameable_types`, on in both crates). What it cannot see is which of the ground floor's rooms
//! the SDK passes on; that is here.

use std::path::Path;

use training_gym::external::{Bytes, Stream, async_trait, serde_json};
use training_gym::store::{ETag, Error, MemoryStore, Object, ObjectMeta, Store};

fn source(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn every_room_of_the_ground_floor_is_passed_on() {
    let sdk = source("src/lib.rs");
    let passed = sdk.split("pub use training_gym_core::{").nth(1).and_then(|rest| rest.split('}').next()).unwrap();
    let passed: Vec<&str> = passed.split(',').map(str::trim).collect();
    let core = source("core/src/lib.rs");
    let rooms: Vec<&str> = core.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(rooms.len() >= 8, "{rooms:?}");
    for room in rooms {
        assert!(passed.contains(&room), "`{room}` of the ground floor cannot be named from training_gym");
    }
}

/// A person's own store: it needs a name for all of a trait's types.
#[derive(Debug)]
struct Counted(MemoryStore);

#[async_trait]
impl Store for Counted {
    fn url(&self) -> String {
        "memory://".to_owned()
    }
    async fn put(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.0.put(key, bytes).await
    }
    async fn put_file(&self, key: &str, path: &Path) -> Result<ETag, Error> {
        self.0.put_file(key, path).await
    }
    async fn create(&self, key: &str, bytes: Bytes) -> Result<ETag, Error> {
        self.0.create(key, bytes).await
    }
    async fn swap(&self, key: &str, bytes: Bytes, expected: &ETag) -> Result<ETag, Error> {
        self.0.swap(key, bytes, expected).await
    }
    async fn write_at(&self, key: &str, offset: u64, bytes: Bytes) -> Result<(), Error> {
        self.0.write_at(key, offset, bytes).await
    }
    async fn get(&self, key: &str) -> Result<Object, Error> {
        self.0.get(key).await
    }
    async fn get_file(&self, key: &str, path: &Path) -> Result<(), Error> {
        self.0.get_file(key, path).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, Error> {
        self.0.list(prefix).await
    }
    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.0.delete(key).await
    }
}

#[tokio::test]
async fn an_own_store_passes_the_suite_of_stores() {
    training_gym::store::conformance::all(&Counted(MemoryStore::new())).await;
}

#[test]
fn what_handles_give_out_has_a_name() {
    fn named<T>() {}
    named::<(training_gym::ids::RunId, training_gym::ids::AppName, training_gym::ids::InvalidName)>();
    named::<(training_gym::ids::ContentHash, training_gym::ids::WeightVersion)>();
    named::<(training_gym::spec::RunSpec, training_gym::spec::ServeSpec, training_gym::spec::SecretRef)>();
    named::<(training_gym::spec::SamplingSpec, training_gym::spec::NodeSpec, training_gym::spec::HubRef)>();
    named::<(training_gym::record::RunStatus, training_gym::record::RolloutRecord, training_gym::record::Grade)>();
    named::<(training_gym::wire::GenerateRequest, training_gym::wire::GenerateReply)>();
    named::<(training_gym::wire::teacher::TeacherFault, training_gym::wire::teacher::ProbeFault)>();
    named::<(training_gym::checkpoint::Error, training_gym::sample::Prompt, serde_json::Error)>();
    fn lines<S: Stream<Item = Result<String, training_gym::backend::Error>> + Send + 'static>(stream: S) {
        drop(training_gym::backend::Logs::new(stream));
    }
    lines(futures::stream::empty());
}
