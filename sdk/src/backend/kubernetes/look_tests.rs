//! States, from objects as the API server gives them.

use serde_json::{Value, json};

use super::*;

fn job(status: Value, annotations: Value) -> Owner {
    let metadata = json!({"name": "train-r", "uid": "u1", "annotations": annotations,
        "creationTimestamp": "2026-01-01T00:00:00Z"});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "status": status});
    Owner::Train(Box::new(serde_json::from_value(job).unwrap()))
}

fn deployment() -> Owner {
    let metadata = json!({"name": "serve-a", "uid": "u2", "creationTimestamp": "2026-01-01T00:00:00Z"});
    Owner::Serve(Box::new(serde_json::from_value(json!({"metadata": metadata})).unwrap()))
}

fn pod(phase: &str, container: Value, ready: bool) -> Pod {
    let ready = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    let metadata = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:01Z", "labels": {JOB: "serve-a"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train-r", "uid": "u1"}]});
    let status = json!({"phase": phase, "conditions": ready, "containerStatuses": [container]});
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn container_of(name: &str, state: Value, restarts: i32) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": restarts, "state": state})
}

fn ended(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

fn condition(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}]})
}

#[test]
fn a_training_job_is_over_when_its_job_is() {
    let failed = pod("Failed", container_of(TRAINER, ended(3), 0), false);
    let none = json!({});
    let of = |owner: &Owner, pods: &[Pod]| state(owner, pods, None, 900.0).state;
    // A pod that failed is not the job's end: the next may come.
    assert_eq!(of(&job(json!({"active": 1}), none.clone()), std::slice::from_ref(&failed)), JobState::Starting);
    let exit = |state: JobState| match state {
        JobState::Ended(exit) => exit,
        other => panic!("{other:?}"),
    };
    assert_eq!(exit(of(&job(condition("Failed"), none.clone()), std::slice::from_ref(&failed))).code, Some(3));
    assert_eq!(exit(of(&job(condition("Complete"), none.clone()), &[])).code, Some(0));
    let cancelled = json!({CANCELLED: "true"});
    assert!(exit(of(&job(condition("Failed"), cancelled.clone()), &[])).cancelled);
    assert!(exit(of(&job(json!({}), cancelled.clone()), &[failed])).cancelled);
    let running = pod("Running", container_of(TRAINER, json!({"running": {}}), 0), true);
    assert_eq!(of(&job(json!({"active": 1}), none), std::slice::from_ref(&running)), JobState::Running);
    // Asked to stop, and still saving.
    assert_eq!(of(&job(json!({"active": 1}), cancelled), &[running]), JobState::Running);
}

#[test]
fn a_deployment_runs_when_a_pod_is_ready_and_ends_when_it_is_hopeless() {
    let of = |pod: Pod| state(&deployment(), &[pod], None, 900.0).state;
    let running = json!({"running": {}});
    assert_eq!(of(pod("Running", container_of(SERVER, running.clone(), 0), false)), JobState::Starting);
    assert_eq!(of(pod("Running", container_of(SERVER, running, 5), true)), JobState::Running);
    assert_eq!(of(pod("Running", container_of(SERVER, ended(1), 1), false)), JobState::Starting);
    let JobState::Ended(exit) = of(pod("Running", container_of(SERVER, ended(2), 3), false)) else { panic!() };
    assert_eq!((exit.code, exit.cancelled), (Some(2), false));
}

#[test]
fn a_pod_belongs_to_the_object_that_made_it() {
    let mut other = pod("Running", json!(container_of(TRAINER, json!({}), 0)), false);
    assert!(job(json!({}), json!({})).has(&other) && deployment().has(&other));
    other.metadata.owner_references.as_mut().unwrap()[0].uid = "before".to_owned();
    assert!(!job(json!({}), json!({})).has(&other));
    other.metadata.creation_timestamp = Some(Time("2025-12-31T00:00:00Z".parse().unwrap()));
    assert!(!deployment().has(&other));
}

#[test]
fn what_does_not_start_in_time_has_failed_and_says_why() {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    let pods = vec![pod("Pending", container_of(TRAINER, waiting, 0), false)];
    let owner = job(json!({"startTime": "2026-01-01T00:00:00Z", "active": 1}), json!({}));
    let start = 1_767_225_600.0;
    let at = |now: f64| Evidence { pods: pods.clone(), now, ..Evidence::default() };
    let early = state(&owner, &pods, Some(&at(start + 60.0)), 900.0);
    assert_eq!(early.state, JobState::Starting);
    assert!(early.waiting.unwrap().contains("image"));
    let JobState::Ended(exit) = state(&owner, &pods, Some(&at(start + 901.0)), 900.0).state else { panic!() };
    let failure = exit.failure.unwrap();
    assert!(failure.sentence.contains("900 s") && failure.sentence.contains("image"), "{}", failure.sentence);
    // A job that a queue holds back has no start yet.
    let queued = job(json!({}), json!({}));
    assert_eq!(state(&queued, &[], Some(&at(start + 1e6)), 900.0).state, JobState::Starting);
}
