use serde_json::json;

use super::*;

const TOKENS: [i64; 6] = [11, 12, 13, 21, 22, 23];

fn sequence() -> Sequence<'static> {
    Sequence::new(&TOKENS, 3).unwrap()
}

fn sglang(items: &str) -> Scored {
    let body = format!(r#"[{{"text": "NaN", "meta_info": {{"input_token_logprobs": {items}}}}}]"#);
    let mut scored = response_logprobs(TeacherDialect::Sglang, &[sequence()], body.as_bytes()).unwrap();
    assert_eq!(scored.len(), 1);
    scored.remove(0)
}

fn vllm(positions: &str) -> Scored {
    let body = format!(r#"{{"choices": [{{"index": 0, "text": "", "prompt_logprobs": {positions}}}]}}"#);
    response_logprobs(TeacherDialect::Vllm, &[sequence()], body.as_bytes()).unwrap().remove(0)
}

#[test]
fn a_request_leaves_nothing_to_the_server() {
    let other = [7, 8];
    let batch = [sequence(), Sequence::new(&other, 1).unwrap()];
    let body = request(TeacherDialect::Sglang, &batch, None);
    assert_eq!(body["input_ids"], json!([TOKENS, other]));
    assert_eq!(body["logprob_start_len"], json!([2, 0]));
    assert_eq!(body["return_logprob"], true);
    assert_eq!(
        body["sampling_params"],
        json!({"max_new_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "stop": [],
            "stop_token_ids": [], "ignore_eos": false, "skip_special_tokens": false, "n": 1})
    );
    assert_eq!(request(TeacherDialect::Sglang, &batch[..1], None)["logprob_start_len"], 2);

    let body = request(TeacherDialect::Vllm, &batch, Some("teacher"));
    assert_eq!((&body["prompt"], &body["model"]), (&json!([TOKENS, other]), &json!("teacher")));
    assert_eq!((&body["prompt_logprobs"], &body["max_tokens"]), (&json!(1), &json!(1)));
    assert!(Sequence::new(&TOKENS, 6).is_err(), "a response needs a prompt");
}

#[test]
fn a_good_answer_is_the_response_part() {
    let good = "[[null, 13, null], [-1.5, 21, null], [-0.25, 22, \"x\"], [1e-7, 23, null]]";
    assert_eq!(sglang(good).unwrap(), [-1.5, -0.25, 0.0]);
    let one = format!(r#" {{"meta_info": {{"input_token_logprobs": {good}}}}}"#);
    let scored = response_logprobs(TeacherDialect::Sglang, &[sequence()], one.as_bytes()).unwrap();
    assert_eq!(scored[0].as_ref().unwrap()[0], -1.5, "an unpacked list of one");

    let good = r#"[null, {"12": {"logprob": -9.0}}, {"13": {"logprob": -8.0}},
        {"5": {"logprob": -0.1, "rank": 1}, "21": {"logprob": -1.5, "rank": 2, "decoded_token": "x"}},
        {"22": {"logprob": -0.25}}, {"23": {"logprob": -0.5}}]"#;
    assert_eq!(vllm(good).unwrap(), [-1.5, -0.25, -0.5]);
}

/// What each fault's answer looks like, and the position its message must name.
#[test]
fn every_fault_has_its_own_outcome() {
    use TeacherFault as F;
    let last = |value: &str| sglang(&format!("[[null,13,null],[-1.5,21,null],[-1,22,null],[{value},23,null]]"));
    for (value, expected) in [
        ("null", F::Null { position: 5 }),
        ("-Infinity", F::NegativeInfinity { position: 5 }),
        ("\"-Infinity\"", F::NegativeInfinity { position: 5 }),
        ("\"-inf\"", F::NegativeInfinity { position: 5 }),
        ("-1e30", F::NegativeInfinity { position: 5 }),
        ("-1e999", F::NegativeInfinity { position: 5 }),
        ("-9999.0", F::NegativeInfinity { position: 5 }),
        ("NaN", F::NotANumber { position: 5 }),
        ("\"nan\"", F::NotANumber { position: 5 }),
        ("0.7", F::Positive { position: 5, value: 0.7 }),
        ("Infinity", F::Positive { position: 5, value: f64::INFINITY }),
    ] {
        let fault = last(value).unwrap_err();
        assert_eq!(format!("{fault:?}"), format!("{expected:?}"), "{value}");
        assert!(fault.to_string().contains("position 5"), "{fault}");
    }
    let fault = sglang("[[null,13,null],[-1.5,21,null],[-1,99,null],[-1,23,null]]").unwrap_err();
    assert!(matches!(&fault, F::TokenId { position: 4, sent: 22, received } if received == "99"), "{fault}");
    let fault = sglang("[[null,12,null],[-1.5,21,null],[-1,22,null],[-1,23,null]]").unwrap_err();
    assert!(matches!(fault, F::TokenId { position: 2, sent: 13, .. }), "the prompt's last id counts: {fault}");
    for items in [
        "[]",
        "[[-1.5,21,null],[-1,22,null],[-1,23,null]]",
        "[[null,13,null],[-1,21,null],[-1,22,null],[-1,23,null],[-1,24,null]]",
    ] {
        let fault = sglang(items).unwrap_err();
        assert!(matches!(fault, F::PositionCount { start: 2, expected: 4, .. }), "{items}: {fault}");
    }
    assert!(matches!(sglang("null").unwrap_err(), F::NoLogprobs { .. }));

    let fault = vllm(r#"[null, null, null, {"99": {"logprob": -1}}, null, null]"#).unwrap_err();
    assert!(matches!(&fault, F::TokenId { position: 3, sent: 21, received } if received == "99"), "{fault}");
    let fault = vllm(r#"[null, null, null, {"21": {"logprob": -Infinity}}, null, null]"#).unwrap_err();
    assert!(matches!(fault, F::NegativeInfinity { position: 3 }), "{fault}");
    let fault = vllm(r#"[null, null, null, null, null, null]"#).unwrap_err();
    assert!(matches!(fault, F::Null { position: 3 }), "{fault}");
    assert!(matches!(vllm("[null]").unwrap_err(), F::PositionCount { expected: 6, received: 1, .. }));
    assert!(matches!(vllm("null").unwrap_err(), F::NoLogprobs { .. }));
}

#[test]
fn one_bad_sequence_does_not_spoil_its_neighbours() {
    let body = r#"[{"meta_info": {"input_token_logprobs": [[null,13,null],[-1,21,null],[NaN,22,null],[-1,23,null]]}},
        {"meta_info": {"input_token_logprobs": [[null,13,null],[-1,21,null],[-2,22,null],[-3,23,null]]}},
        {"meta_info": {"finish_reason": {"type": "abort", "message": "no memory"}}}]"#;
    let scored = response_logprobs(TeacherDialect::Sglang, &[sequence(); 3], body.as_bytes()).unwrap();
    assert!(matches!(scored[0], Err(TeacherFault::NotANumber { position: 4 })));
    assert_eq!(scored[1].as_ref().unwrap(), &[-1.0, -2.0, -3.0]);
    assert!(scored[2].as_ref().unwrap_err().to_string().contains("no memory"));
}

#[test]
fn an_answer_that_is_none_says_so() {
    for dialect in [TeacherDialect::Sglang, TeacherDialect::Vllm] {
        let fault = response_logprobs(dialect, &[sequence()], b"<html>502 Bad Gateway</html>").unwrap_err();
        assert!(matches!(fault, TeacherFault::Malformed { .. }));
        assert!(fault.to_string().contains("502 Bad Gateway"), "{fault}");
    }
    let fault = response_logprobs(TeacherDialect::Sglang, &[sequence()], b"[]").unwrap_err();
    assert!(matches!(fault, TeacherFault::ReplyCount { sent: 1, received: 0 }), "{fault}");
    let twice = br#"{"choices": [{"index": 0}, {"index": 0}]}"#;
    let fault = response_logprobs(TeacherDialect::Vllm, &[sequence(); 2], twice).unwrap_err();
    assert!(matches!(fault, TeacherFault::ReplyCount { sent: 2, received: 2 }), "{fault}");
}

#[test]
fn the_probe_wants_seven_finite_numbers() {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    let probe = probe_sequence(&tokens);
    assert_eq!(request(TeacherDialect::Sglang, &[probe], None)["logprob_start_len"], 0);
    let answer = |value: &str| {
        let items: Vec<String> =
            tokens.iter().map(|id| format!("[{}, {id}, null]", if *id == 1 { "null" } else { value })).collect();
        let body = format!(r#"[{{"meta_info": {{"input_token_logprobs": [{}]}}}}]"#, items.join(","));
        check_probe(response_logprobs(TeacherDialect::Sglang, &[probe], body.as_bytes()).unwrap().remove(0))
    };
    answer("-2.5").unwrap();
    assert!(matches!(answer("0.0"), Err(ProbeFault::AllZero)));
    assert!(matches!(answer("null"), Err(ProbeFault::Fault(TeacherFault::Null { position: 1 }))));
    assert!(matches!(check_probe(Ok(vec![-1.0; 6])), Err(ProbeFault::Count { received: 6, expected: 7 })));
}

#[test]
fn models_are_compared_where_both_tell() {
    let info = |vocab: &str, eos: &[i64]| crate::wire::ModelInfo {
        model_path: format!("model-{vocab}"),
        is_generation: true,
        eos_token_ids: Some(eos.to_vec()),
        vocab_sha256: Some(vocab.to_owned()),
        context_length: None,
        weight_version: None,
    };
    let student = info("a", &[1, 2]);
    assert_eq!(compare_models(&student, &info("a", &[2, 1])), Ok(Vec::new()));
    assert!(matches!(compare_models(&student, &info("b", &[1, 2])), Err(ModelMismatch::Vocabulary { .. })));
    let error = compare_models(&student, &info("a", &[1])).unwrap_err();
    assert!(error.to_string().contains("{1, 2}"), "{error}");
    let silent = crate::wire::ModelInfo { vocab_sha256: None, eos_token_ids: None, ..student.clone() };
    assert_eq!(compare_models(&student, &silent).unwrap().len(), 2);
}

/// slime's own trimming of SGLang answers (`teacher_trim` of the golden files).
#[test]
fn trims_as_slime_does() {
    let folder = std::env::var_os("TRAINING_GYM_SHARED").unwrap_or_else(|| "../../../shared".into());
    let file = std::path::Path::new(&folder).join("golden/slime.json");
    let Ok(text) = std::fs::read(&file) else {
        eprintln!("skipped: no golden file {}; set TRAINING_GYM_SHARED", file.display());
        return;
    };
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let cases = golden["teacher_trim"].as_array().unwrap();
    for case in cases {
        let items = &case["input_token_logprobs"];
        let tokens: Vec<i64> = items.as_array().unwrap().iter().map(|item| item[1].as_i64().unwrap()).collect();
        let response_length = case["response_length"].as_u64().unwrap() as usize;
        let sequence = Sequence::new(&tokens, response_length).unwrap();
        let expected: Vec<f32> = serde_json::from_value(case["teacher_log_probs"].clone()).unwrap();
        // slime asks from position 0; the answer to our request is the same answer's end.
        assert_eq!(sglang::parse_from(sequence, 0, items).unwrap(), expected);
        let ours: Vec<&Value> = items.as_array().unwrap()[sequence.start()..].iter().collect();
        assert_eq!(sglang::parse_from(sequence, sequence.start(), &json!(ours)).unwrap(), expected);
    }
    assert!(!cases.is_empty());
    println!("teacher_trim: {} cases", cases.len());
}

fn answer(dialect: TeacherDialect, body: &str, top: usize) -> Result<Answer, TeacherFault> {
    response_answers(dialect, &[sequence()], top, body.as_bytes()).unwrap().remove(0)
}

fn sglang_top(tops: &str) -> Result<Answer, TeacherFault> {
    let items = "[[null,13,null],[-1.5,21,null],[-0.25,22,null],[-3,23,null]]";
    let body = format!(r#"[{{"meta_info": {{"input_token_logprobs": {items}, "input_top_logprobs": {tops}}}}}]"#);
    answer(TeacherDialect::Sglang, &body, 2)
}

#[test]
fn the_likeliest_tokens_come_in_order_from_either_dialect() {
    let top = request_top(TeacherDialect::Sglang, &[sequence()], None, 2);
    assert_eq!((&top["top_logprobs_num"], &top["logprob_start_len"]), (&json!(2), &json!(2)));
    assert_eq!(request_top(TeacherDialect::Vllm, &[sequence()], None, 2)["prompt_logprobs"], 2);

    let sglang =
        sglang_top("[null, [[-0.5,7,null],[-1.5,21,null]], [[-2,8,null],[-0.25,22,\"x\"]], [[-1,5,null],[-1,4,null]]]")
            .unwrap();
    let vllm = r#"{"choices": [{"index": 0, "prompt_logprobs": [null, {"12": {"logprob": -9}}, {"13": {"logprob": -8}},
        {"7": {"logprob": -0.5, "rank": 1}, "21": {"logprob": -1.5, "rank": 2}},
        {"22": {"logprob": -0.25}, "8": {"logprob": -2}},
        {"23": {"logprob": -3, "rank": 9}, "5": {"logprob": -1}, "4": {"logprob": -1}}]}]}"#;
    let vllm = answer(TeacherDialect::Vllm, vllm, 2).unwrap();
    assert_eq!(sglang, vllm, "the token that was sent is not one of the likeliest for being named");
    assert_eq!(sglang.logprobs, [-1.5, -0.25, -3.0]);
    let top = sglang.top.unwrap();
    assert_eq!((top.k(), top.positions(), top.ids()), (2, 3, &[7, 21, 22, 8, 4, 5][..]));
    assert_eq!(top.logprobs(), [-0.5, -1.5, -0.25, -2.0, -1.0, -1.0]);
    let again: TopLogprobs = serde_json::from_value(serde_json::to_value(&top).unwrap()).unwrap();
    assert_eq!(again, top);
    for damaged in [json!({"k": 2, "ids": [1], "logprobs": [-1.0]}), json!({"k": 0, "ids": [], "logprobs": []})] {
        assert!(serde_json::from_value::<TopLogprobs>(damaged).is_err());
    }
}

#[test]
fn likeliest_tokens_that_are_none_are_faults() {
    use TeacherFault as F;
    let with = |last: &str| sglang_top(&format!("[null,[[-1,1,null],[-1,2,null]],[[-1,1,null],[-1,2,null]],{last}]"));
    with("[[-1,1,null],[-1,2,null]]").unwrap();
    let expect = |last: &str, expected: fn(&F) -> bool| {
        let fault = with(last).unwrap_err();
        assert!(expected(&fault) && fault.to_string().contains("position 5"), "{last}: {fault}");
    };
    expect("[[-1,1,null]]", |fault| matches!(fault, F::TopCount { position: 5, expected: 2, received: 1 }));
    expect("null", |fault| matches!(fault, F::TopCount { received: 0, .. }));
    expect("[[-1,1,null],[-2,1,null]]", |fault| matches!(fault, F::TopTwice { id: 1, .. }));
    expect("[[-0.1,1,null],[-0.1,2,null]]", |fault| matches!(fault, F::TopMass { mass, .. } if *mass > 1.8));
    expect("[[-1,1,null],[null,2,null]]", |fault| matches!(fault, F::Null { .. }));
    expect("[[-1,1,null],[-Infinity,2,null]]", |fault| matches!(fault, F::NegativeInfinity { .. }));
    let fault = sglang_top("[null, [[-1,1,null],[-1,2,null]]]").unwrap_err();
    assert!(matches!(fault, F::PositionCount { expected: 4, received: 2, .. }), "{fault}");
    let fault = sglang_top("null").unwrap_err();
    assert!(matches!(fault, F::NoLogprobs { field: "input_top_logprobs" }), "{fault}");
}
