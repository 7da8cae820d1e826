//! The scheduler's sentence, taken apart: how many nodes fail which test.

use std::sync::LazyLock;

use regex::Regex;

use super::text::pattern;

/// A test that nodes fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Too little of a resource is free.
    Insufficient(String),
    /// A taint the pod does not tolerate; newer schedulers do not say which.
    Taint(Option<String>),
    /// Labels: node selector or affinity.
    Selector,
    /// Affinity or anti-affinity to other pods, or the spread over zones.
    Neighbours(String),
    /// Cordoned.
    Cordoned,
    /// The node holds as many pods as it may.
    TooManyPods,
    /// A volume lies elsewhere.
    VolumeElsewhere(String),
    /// A claim is not bound, or no volume is there for it.
    ClaimUnbound(String),
    /// A claim does not exist.
    ClaimMissing(String),
    /// In words this version does not know.
    Other(String),
}

/// A test and the nodes that fail it, where it is about nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) nodes: Option<u32>,
    pub(super) test: Test,
}

/// What the scheduler said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Nodes there are.
    pub(super) nodes: Option<u32>,
    pub(super) failed: Vec<Failed>,
}

/// Reads `0/12 nodes are available: 3 Insufficient nvidia.com/gpu, 9 node(s) had …. preemption: …`,
/// and what the cluster autoscaler and Karpenter say in its place.
pub(super) fn read(said: &str) -> Verdict {
    static HEAD: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?s)^\s*\d+/(\d+) nodes are available:?\s*(.*)$"));
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let (nodes, body) = match HEAD.captures(&flat) {
        Some(found) => (found[1].parse().ok(), found[2].to_owned()),
        None => (None, flat.clone()),
    };
    // What follows is about making room by preemption.
    let body = body.split("preemption:").next().unwrap_or_default();
    let body = body.replace("no new claims to deallocate,", "").replace("no new claims to deallocate", "");
    let mut failed: Vec<Failed> = Vec::new();
    for part in parts(body.trim().trim_end_matches(['.', ',', ' '])) {
        let (count, text) = counted(&part);
        let test = test(text);
        if text.is_empty() || failed.iter().any(|known| known.test == test) {
            continue;
        }
        failed.push(Failed { nodes: count, test });
    }
    Verdict { nodes, failed }
}

/// Parts begin with a number; a comma inside of one does not end it.
fn parts(body: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in body.split(", ") {
        let piece = piece.trim().trim_end_matches('.');
        let begins = piece.chars().next().is_some_and(|c| c.is_ascii_digit()) && piece.contains(' ');
        let own = begins
            || ["persistentvolumeclaim", "pod has unbound", "insufficient", "Insufficient"]
                .iter()
                .any(|word| piece.starts_with(word));
        match parts.last_mut() {
            Some(last) if !own => {
                last.push_str(", ");
                last.push_str(piece);
            }
            _ => parts.push(piece.to_owned()),
        }
    }
    parts
}

fn counted(part: &str) -> (Option<u32>, &str) {
    match part.split_once(' ') {
        Some((number, rest)) if number.parse::<u32>().is_ok() => (number.parse().ok(), rest.trim()),
        _ => (None, part.trim()),
    }
}

fn test(text: &str) -> Test {
    static TAINT: LazyLock<Regex> = LazyLock::new(|| pattern(r"taint(?:\(s\))?,? ?(?:\{([^}]*)\})?"));
    static CLAIM: LazyLock<Regex> =
        LazyLock::new(|| pattern(r#"persistentvolumeclaims? "([^"]+)" (?:not found|is being deleted)"#));
    let lower = text.to_lowercase();
    let has = |word: &str| lower.contains(word);
    if let Some(at) = lower.find("insufficient ") {
        let name: String = text[at + "insufficient ".len()..]
            .chars()
            .take_while(|c| !c.is_whitespace() && !",;.)".contains(*c) || *c == '.')
            .collect();
        return Test::Insufficient(name.trim_end_matches('.').to_owned());
    }
    if let Some(found) = CLAIM.captures(&lower) {
        return Test::ClaimMissing(found[1].to_owned());
    }
    if has("unbound immediate persistentvolumeclaim")
        || has("find available persistent volumes")
        || has("waiting for ephemeral volume controller")
        || has("binding volumes")
        || has("bound to a non-existent persistentvolume")
        || has("waiting for a volume to be created")
    {
        return Test::ClaimUnbound(text.to_owned());
    }
    if has("volume node affinity conflict")
        || has("persistentvolume's node affinity")
        || has("no available volume zone")
        || has("max volume count")
        || has("volume zone")
    {
        return Test::VolumeElsewhere(text.to_owned());
    }
    if has("taint") && (has("toler") || has("had taint")) {
        let named = TAINT
            .captures(text)
            .and_then(|found| Some(found.get(1)?.as_str().trim().trim_end_matches(':').trim().to_owned()));
        return Test::Taint(named.filter(|name| !name.is_empty()));
    }
    if has("pod affinity") || has("anti-affinity") || has("topology spread") || has("free ports") {
        return Test::Neighbours(text.to_owned());
    }
    if has("node selector")
        || has("node affinity")
        || has("affinity/selector")
        || has("match node")
        || has("didn't match requested node name")
    {
        return Test::Selector;
    }
    if has("were unschedulable") || has("node(s) were not ready") {
        return Test::Cordoned;
    }
    if has("too many pods") {
        return Test::TooManyPods;
    }
    Test::Other(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(said: &str) -> Vec<(Option<u32>, Test)> {
        read(said).failed.into_iter().map(|failed| (failed.nodes, failed.test)).collect()
    }

    #[test]
    fn the_wordings_of_many_versions_are_read() {
        let gpu = || Test::Insufficient("nvidia.com/gpu".to_owned());
        let said = "0/12 nodes are available: 3 Insufficient nvidia.com/gpu, 9 node(s) had untolerated taint {nvidia.com/gpu: present}. preemption: 0/12 nodes are available: 12 No preemption victims found for incoming pod.";
        assert_eq!(tests(said), [(Some(3), gpu()), (Some(9), Test::Taint(Some("nvidia.com/gpu: present".to_owned())))]);
        assert_eq!(read(said).nodes, Some(12));
        let said = "0/2 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
        assert_eq!(tests(said), [(Some(1), Test::TooManyPods), (Some(1), Test::Taint(None))]);
        let said = "0/4 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't tolerate, 3 Insufficient memory.";
        assert_eq!(
            tests(said),
            [
                (Some(1), Test::Taint(Some("node-role.kubernetes.io/master".to_owned()))),
                (Some(3), Test::Insufficient("memory".to_owned()))
            ]
        );
        let said = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes are available: 3 Preemption is not helpful.";
        assert!(matches!(tests(said).as_slice(), [(None, Test::ClaimUnbound(_))]));
        let said = r#"0/3 nodes are available: persistentvolumeclaim "models" not found. preemption: 0/3 nodes"#;
        assert_eq!(tests(said), [(None, Test::ClaimMissing("models".to_owned()))]);
        let said = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's node affinity.";
        assert!(matches!(tests(said).as_slice(), [(Some(1), Test::Cordoned), (Some(2), Test::VolumeElsewhere(_))]));
        let said = "pod didn't trigger scale-up: 2 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector";
        assert!(tests(said).iter().any(|(_, test)| *test == gpu()), "{:?}", tests(said));
        let said = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.";
        assert_eq!(tests(said), [(Some(3), Test::Selector)]);
        assert!(matches!(tests("2 nodes hold a grudge").as_slice(), [(Some(2), Test::Other(_))]));
    }
}
