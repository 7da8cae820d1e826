//! What may go: resume states that newer ones replace. Checkpoints are never removed.

use super::{Error, Kind, MANIFEST};
use crate::ids::RunId;
use crate::store::Store;

/// A folder of a run as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Its step.
    pub step: u64,
    /// Whether it has its manifest.
    pub published: bool,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Remove the resume state of a step.
    DeleteResumeState {
        /// The step.
        step: u64,
    },
}

/// Decides which resume states go: all but the newest `keep` published ones (at least one), and
/// every unpublished one older than the newest published, which only a lost attempt can have left.
/// An unpublished one that is newer may still be uploading.
pub fn retention(states: &[State], keep: usize) -> Vec<Action> {
    let mut published: Vec<u64> = states.iter().filter(|state| state.published).map(|state| state.step).collect();
    published.sort_unstable_by(|a, b| b.cmp(a));
    published.dedup();
    published.truncate(keep.max(1));
    let Some(&newest) = published.first() else { return Vec::new() };
    let mut gone: Vec<u64> =
        states.iter().map(|state| state.step).filter(|step| *step < newest && !published.contains(step)).collect();
    gone.sort_unstable();
    gone.dedup();
    gone.into_iter().map(|step| Action::DeleteResumeState { step }).collect()
}

/// Does what [`retention`] decided. The manifest goes first, so that no reader trusts what is
/// half removed; doing it again goes on where a crash stopped it.
///
/// # Errors
/// When the store fails.
pub async fn carry_out(store: &dyn Store, run: &RunId, actions: &[Action]) -> Result<(), Error> {
    for Action::DeleteResumeState { step } in actions {
        let folder = Kind::ResumeState.folder(run, *step);
        let failed = |source| Error::Store { folder: folder.clone(), source };
        store.delete(&format!("{folder}/{MANIFEST}")).await.map_err(failed)?;
        for object in store.list(&format!("{folder}/")).await.map_err(failed)? {
            store.delete(&object.key).await.map_err(failed)?;
        }
    }
    Ok(())
}
