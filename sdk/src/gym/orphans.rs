//! What is in the store and the backend that nobody needs any more: what `gym gc` removes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use training_gym_core::ids::RunId;
use training_gym_core::store::{ObjectMeta, Store};

use super::Gym;
use crate::backend::{self, JobId, Orphan, Workload};

/// Something that nobody needs any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// What it is and why nobody needs it.
    pub orphan: Orphan,
    /// Its size in bytes, where it has one.
    pub bytes: Option<u64>,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Keys, in the order in which they go: a manifest before what it lists.
    Store(Vec<String>),
    Backend,
}

/// Inputs by kind and hash.
type Inputs = BTreeMap<(String, String), Vec<ObjectMeta>>;

impl Gym {
    /// What nobody needs any more, at least `older_than` old. Of an object whose age the store does not
    /// say nothing is known, so it is only among them where `older_than` is 0: a launch that is under way
    /// elsewhere has its inputs in the store before its spec.
    ///
    /// In the store: inputs that no run's spec and no deployment names; checkpoints and resume states
    /// without a manifest, of runs that do not run. In the backend: see [`backend::Backend::orphans`].
    ///
    /// # Errors
    /// When store or backend cannot be asked. Nothing is removed by this.
    pub async fn leftovers(&self, older_than: Duration) -> Result<Vec<Leftover>, crate::error::Error> {
        let objects = self.store().list("runs/").await?;
        let used = self.used(&objects).await?;
        let mut found = self.unfinished(&objects, older_than).await?;
        found.extend(self.unused_inputs(&used, older_than).await?);
        let orphans = self.backend().orphans().await?;
        found.extend(orphans.into_iter().map(|orphan| Leftover { orphan, bytes: None, place: Place::Backend }));
        Ok(found)
    }

    /// Removes one of [`Gym::leftovers`].
    ///
    /// # Errors
    /// When it cannot be removed.
    pub async fn remove(&self, leftover: &Leftover) -> Result<(), crate::error::Error> {
        match &leftover.place {
            Place::Backend => self.backend().remove(&leftover.orphan).await?,
            Place::Store(keys) => {
                for key in keys {
                    self.store().delete(key).await?;
                }
            }
        }
        Ok(())
    }

    /// Every sha256 that a document of a run or the spec of a deployment names. Documents are searched as
    /// text, so that one of a newer version, or a damaged one, still protects what it names.
    async fn used(&self, objects: &[ObjectMeta]) -> Result<BTreeSet<String>, crate::error::Error> {
        let mut used = BTreeSet::new();
        let documents = objects.iter().filter(|object| {
            let parts: Vec<&str> = object.key.split('/').collect();
            parts.len() == 3 && parts[2].ends_with(".json")
        });
        for document in documents {
            match self.store().get(&document.key).await {
                Ok(object) => hashes(&String::from_utf8_lossy(&object.bytes), &mut used),
                // Removed since it was listed.
                Err(training_gym_core::store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for job in self.backend().list().await? {
            if job.state.was_cancelled() && matches!(job.workload, Workload::Serve { .. }) {
                continue;
            }
            hashes(&serde_json::to_string(&job.workload).unwrap_or_default(), &mut used);
        }
        Ok(used)
    }

    async fn unused_inputs(
        &self,
        used: &BTreeSet<String>,
        older_than: Duration,
    ) -> Result<Vec<Leftover>, crate::error::Error> {
        let mut inputs: Inputs = BTreeMap::new();
        for object in self.store().list("inputs/").await? {
            let mut parts = object.key.splitn(4, '/').skip(1).map(str::to_owned);
            if let (Some(kind), Some(name)) = (parts.next(), parts.next()) {
                let hash = name.split('.').next().unwrap_or_default().to_owned();
                inputs.entry((kind, hash)).or_default().push(object);
            }
        }
        let mut found = Vec::new();
        for ((kind, hash), objects) in inputs {
            let named = used.contains(&hash) || (kind == "prepared" && self.remembers_used(&objects, used).await?);
            if named || hash.len() != 64 || !self.is_old(&objects, older_than) {
                continue;
            }
            let why = match kind.as_str() {
                "prepared" => "the rows it remembers belong to no run",
                _ => "no run and no deployment names it",
            };
            found.push(leftover("input", format!("inputs/{kind}/{hash}"), why, &objects));
        }
        Ok(found)
    }

    /// Whether a remembered preparation is of rows that a run reads.
    async fn remembers_used(
        &self,
        objects: &[ObjectMeta],
        used: &BTreeSet<String>,
    ) -> Result<bool, crate::error::Error> {
        for object in objects {
            let mut named = BTreeSet::new();
            match self.store().get(&object.key).await {
                Ok(object) => hashes(&String::from_utf8_lossy(&object.bytes), &mut named),
                Err(training_gym_core::store::Error::NotFound { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            if !named.is_disjoint(used) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Folders of checkpoints and resume states that a crash left without a manifest.
    async fn unfinished(
        &self,
        objects: &[ObjectMeta],
        older_than: Duration,
    ) -> Result<Vec<Leftover>, crate::error::Error> {
        let mut folders: BTreeMap<String, Vec<ObjectMeta>> = BTreeMap::new();
        for object in objects {
            let parts: Vec<&str> = object.key.splitn(5, '/').collect();
            if let [_, run, kind @ ("checkpoints" | "resume"), step, _] = parts.as_slice() {
                folders.entry(format!("runs/{run}/{kind}/{step}/")).or_default().push(object.clone());
            }
        }
        let mut found = Vec::new();
        for (folder, objects) in folders {
            let whole = objects.iter().any(|object| object.key == format!("{folder}manifest.json"));
            if whole || !self.is_old(&objects, older_than) || self.runs_now(&folder).await? {
                continue;
            }
            let kind = if folder.contains("/resume/") { "unfinished resume state" } else { "unfinished checkpoint" };
            found.push(leftover(
                kind,
                folder,
                "it has no manifest, so nothing reads it, and its run does not run",
                &objects,
            ));
        }
        Ok(found)
    }

    async fn runs_now(&self, folder: &str) -> Result<bool, crate::error::Error> {
        let Some(Ok(run)) = folder.split('/').nth(1).map(str::parse::<RunId>) else { return Ok(true) };
        match self.backend().job(&JobId::train(&run)).await {
            Ok(job) => Ok(job.state.is_live()),
            Err(backend::Error::UnknownJob { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the newest of these objects is old enough to be left behind.
    fn is_old(&self, objects: &[ObjectMeta], older_than: Duration) -> bool {
        older_than.is_zero()
            || objects.iter().all(|object| age(self.store().as_ref(), object).is_some_and(|age| age >= older_than))
    }
}

fn age(store: &dyn Store, object: &ObjectMeta) -> Option<Duration> {
    let path = store.local_path(&object.key)?;
    let modified = path.metadata().ok()?.modified().ok()?;
    Some(SystemTime::now().duration_since(modified).unwrap_or_default())
}

fn leftover(kind: &str, name: String, why: &str, objects: &[ObjectMeta]) -> Leftover {
    let mut keys: Vec<String> = objects.iter().map(|object| object.key.clone()).collect();
    // What says that the others are whole goes first: a removal that is cut leaves nothing readable.
    keys.sort_by_key(|key| !key.ends_with("manifest.json"));
    Leftover {
        orphan: Orphan { kind: kind.to_owned(), name, why: why.to_owned() },
        bytes: Some(objects.iter().map(|object| object.size).sum()),
        place: Place::Store(keys),
    }
}

/// Every run of 64 hexadecimal digits in `text`.
fn hashes(text: &str, into: &mut BTreeSet<String>) {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    into.extend(words.filter(|word| word.len() == 64).map(str::to_lowercase));
}

#[cfg(test)]
mod tests {
    use super::*;
    use training_gym_core::ids::ContentHash;

    #[tokio::test]
    async fn what_a_run_names_stays_and_what_nobody_names_goes() {
        let home = tempfile::tempdir().unwrap();
        let gym = Gym::local(home.path()).unwrap();
        let store = gym.store().clone();
        let put = async |key: String, text: String| store.put(&key, text.into()).await.map(drop).unwrap();
        let (kept, lost) = (ContentHash::of(b"kept"), ContentHash::of(b"lost"));
        for hash in [&kept, &lost] {
            put(format!("inputs/rows/{hash}"), "{}".to_owned()).await;
            put(format!("inputs/rows/{hash}.parquet"), "PAR1".to_owned()).await;
            let fingerprint = ContentHash::of(hash.to_string().as_bytes());
            put(format!("inputs/prepared/{fingerprint}"), format!(r#"{{"key": "inputs/rows/{hash}"}}"#)).await;
        }
        // Not even a spec that cannot be read gives up what it names.
        put("runs/r1/spec.json".to_owned(), format!(r#"{{"rows": "{kept}", "#)).await;
        put("runs/r1/checkpoints/step-1/model.safetensors".to_owned(), "w".to_owned()).await;
        put("runs/r1/checkpoints/step-1/manifest.json".to_owned(), "{}".to_owned()).await;
        put("runs/r1/checkpoints/step-2/model.safetensors".to_owned(), "weights".to_owned()).await;

        assert_eq!(gym.leftovers(Duration::from_secs(3600)).await.unwrap(), []);
        let found = gym.leftovers(Duration::ZERO).await.unwrap();
        let names: Vec<&str> = found.iter().map(|found| found.orphan.name.as_str()).collect();
        let prepared = format!("inputs/prepared/{}", ContentHash::of(lost.to_string().as_bytes()));
        let rows = format!("inputs/rows/{lost}");
        assert_eq!(names, ["runs/r1/checkpoints/step-2/", prepared.as_str(), rows.as_str()]);
        assert_eq!(found[0].bytes, Some(7));
        assert_eq!(found[2].bytes, Some(6), "both files of the rows");
        for leftover in &found {
            gym.remove(leftover).await.unwrap();
        }
        assert_eq!(gym.leftovers(Duration::ZERO).await.unwrap(), []);
        let left: Vec<String> = store.list("").await.unwrap().into_iter().map(|object| object.key).collect();
        assert_eq!(left.len(), 6, "{left:?}");
        assert!(left.contains(&format!("inputs/rows/{kept}.parquet")), "{left:?}");
    }
}
