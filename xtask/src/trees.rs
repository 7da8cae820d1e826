//! Which crates each side links: the promise of the layout, asserted.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::shell::{cargo, output};

/// A package, and crates that must not be among its normal dependencies.
const RULES: [(&str, &[&str]); 4] = [
    ("training-gym-core", &["tch", "torch-sys", "kube", "reqwest", "aws-sdk-s3"]),
    ("training-gym-hub", &["tch", "torch-sys", "kube", "training-gym", "aws-sdk-s3"]),
    ("training-gym", &["tch", "torch-sys", "tokenizers"]),
    ("training-gym-runtime", &["kube", "training-gym"]),
];

/// Fails with every broken rule.
pub(crate) fn check() -> Result<()> {
    let mut broken = Vec::new();
    for (package, forbidden) in RULES {
        let tree = output(cargo().args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"]))?;
        let linked: BTreeSet<&str> = tree.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        for name in forbidden {
            if linked.contains(name) {
                broken.push(format!("{package} links {name}"));
            }
        }
        println!("trees: {package}: {} crates, none of {}", linked.len(), forbidden.join(", "));
    }
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{}", broken.join("; "))
}
