//! `gym gc`.

use anyhow::{Context, Result};
use training_gym::external::serde_json::{Value, json};
use training_gym::gym::{Gym, Leftover};

use crate::args::Gc;
use crate::output;

pub(crate) async fn run(gym: &Gym, asked: &Gc, json: bool) -> Result<()> {
    let found = gym.leftovers(asked.older_than).await?;
    if asked.yes {
        for leftover in &found {
            let what = || format!("cannot remove {} `{}`", leftover.orphan.kind, leftover.orphan.name);
            gym.remove(leftover).await.with_context(what)?;
        }
    }
    let bytes: u64 = found.iter().filter_map(|leftover| leftover.bytes).sum();
    if json {
        let items: Value = found.iter().map(document).collect();
        return output::json(&json!({"removed": asked.yes, "bytes": bytes, "leftovers": items}));
    }
    if found.is_empty() {
        return output::line("nothing is left behind");
    }
    let row = |leftover: &Leftover| {
        let orphan = &leftover.orphan;
        vec![orphan.kind.clone(), orphan.name.clone(), output::size(leftover.bytes), orphan.why.clone()]
    };
    output::table(&["KIND", "NAME", "SIZE", "WHY"], &found.iter().map(row).collect::<Vec<_>>())?;
    let (count, size) = (found.len(), output::size(Some(bytes)));
    match asked.yes {
        true => output::line(&format!("removed {count}, {size}")),
        false => output::line(&format!("{count} to remove, {size}; nothing was removed: `gym gc --yes` does it")),
    }
}

fn document(leftover: &Leftover) -> Value {
    let orphan = &leftover.orphan;
    json!({"kind": orphan.kind, "name": orphan.name, "why": orphan.why, "bytes": leftover.bytes})
}
