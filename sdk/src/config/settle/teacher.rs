//! The teacher.

use training_gym_core::spec::{
    Divergence, DivergenceSwitch, SecretRef, SelectionRule, TeacherSpec, TokenSelection, TopK,
};

use super::job::is_variable_name;
use super::{at_least_1, number};
use crate::config::ledger::{Field, Ledger, Shown};
use crate::config::opd::CoResident;
use crate::config::{Opd, Origin, Problem, Teacher};

/// What a co-resident teacher does, but for its files.
pub(in crate::config) struct Distilled {
    pub(in crate::config) divergence: Divergence,
    pub(in crate::config) coef: f64,
    pub(in crate::config) switch: Option<DivergenceSwitch>,
    pub(in crate::config) selection: Option<TokenSelection>,
}

/// The teacher behind a URL, or the one in the trainer.
pub(super) fn teacher(ledger: &mut Ledger<'_>, has_reward: bool) -> (Option<TeacherSpec>, Option<Distilled>) {
    match ledger.recipe().opd.as_ref().and_then(|opd| opd.co_resident.as_ref().map(|teacher| (opd, teacher))) {
        Some((opd, teacher)) => (None, Some(co_resident(ledger, opd, teacher, has_reward))),
        None => (behind_url(ledger, has_reward), None),
    }
}

fn co_resident(ledger: &mut Ledger<'_>, opd: &Opd, teacher: &CoResident, has_reward: bool) -> Distilled {
    ledger.enter("opd.co_resident.model", teacher.model.to_string(), Origin::Yours);
    let divergence = teacher.divergence;
    let plain = Opd::co_resident(teacher.model);
    let origin = |same: bool| if same { Origin::Default } else { Origin::Yours };
    ledger.enter("opd.co_resident.divergence", divergence.shown(), origin(divergence == Divergence::default()));
    let later = teacher.switch.map_or("stays".to_owned(), |it| format!("{} from {:?} on", it.to.shown(), it.at));
    ledger.enter("opd.co_resident.switch", later, origin(teacher.switch.is_none()));
    let tokens = teacher.selection.map_or("all".to_owned(), |selection| selection.shown());
    ledger.enter("opd.co_resident.selection", tokens, origin(teacher.selection.is_none()));
    ledger.enter("opd.opd_kl_coef", opd.opd_kl_coef.shown(), origin(opd.opd_kl_coef == plain.opd_kl_coef));
    ledger.problems.extend(
        teacher
            .model
            .problems()
            .into_iter()
            .map(|problem| Problem { field: "recipe.opd.co_resident.model".to_owned(), ..problem }),
    );
    let of_a_server = shown(&Opd { opd_kl_coef: plain.opd_kl_coef, ..opd.clone() }).into_iter().zip(shown(&plain));
    for ((name, value), _) in of_a_server.filter(|(given, plain)| given != plain) {
        let rule = ("it belongs to a teacher behind a URL, and this one is co-resident", "leave it out");
        ledger.refuse(name, value, rule);
    }
    check_divergence(ledger, "opd.co_resident.divergence", divergence);
    if let Some(switch) = teacher.switch {
        let name = "opd.co_resident.switch";
        check_divergence(ledger, name, switch.to);
        let rule = ("it must be at a share in (0, 1) of the run's steps", "set 0.5, or leave it out");
        number(ledger, name, switch.at, |at| at > 0.0 && at < 1.0, rule);
    }
    if let Some(chosen) = &teacher.selection {
        selection(ledger, chosen, has_reward);
    }
    coef(ledger, opd, has_reward);
    Distilled { divergence, coef: opd.opd_kl_coef, switch: teacher.switch, selection: teacher.selection }
}

fn check_divergence(ledger: &mut Ledger<'_>, name: &'static str, divergence: Divergence) {
    let inside = |value: f64| value > 0.0 && value < 1.0;
    match divergence {
        Divergence::Jsd { beta } => number(
            ledger,
            name,
            beta,
            inside,
            (
                "its beta must be in (0, 1): at either end this divergence is 0 whatever the student does",
                "set 0.5, or take Divergence::ForwardKl or Divergence::ReverseKl",
            ),
        ),
        Divergence::AdaptiveKl { head } => {
            number(ledger, name, head, inside, ("its head must be a mass in (0, 1)", "set 0.5"));
        }
        Divergence::ReverseKl | Divergence::ForwardKl => {}
    }
}

fn selection(ledger: &mut Ledger<'_>, selection: &TokenSelection, has_reward: bool) {
    const NAME: &str = "opd.co_resident.selection";
    let mut refuse = |rule| ledger.refuse(NAME, selection.shown(), rule);
    if !(selection.ratio > 0.0 && selection.ratio <= 1.0) {
        refuse(("its ratio must be in (0, 1]", "set the share of tokens to learn from, such as 0.5"));
    }
    match selection.rule {
        SelectionRule::SoftOr { entropy_clip_quantile: Some(at) }
        | SelectionRule::Overconfident { entropy_clip_quantile: Some(at) }
            if !(at > 0.0 && at <= 1.0) =>
        {
            refuse(("its quantile must be in (0, 1]", "set Some(0.98), or None for no cut"));
        }
        SelectionRule::Sampled { entropy_power, jsd_power }
            if !(entropy_power.is_finite() && jsd_power.is_finite() && entropy_power >= 0.0 && jsd_power >= 0.0) =>
        {
            refuse(("its powers must be numbers ≥ 0", "set both to 1.0"));
        }
        _ => {}
    }
    if has_reward {
        refuse((
            "with a reward every token has a loss of its own, so that leaving some out would save nothing",
            "leave custom_rm_function unset, or teach all tokens",
        ));
    }
}

/// What SGLang and our own server answer at the most.
const MOST_LIKELIEST: usize = 1024;

fn behind_url(ledger: &mut Ledger<'_>, has_reward: bool) -> Option<TeacherSpec> {
    let Some(opd) = &ledger.recipe().opd else {
        ledger.optional(Field { name: "opd", of: |_| None::<String> }, "none");
        if !has_reward {
            ledger.refuse(
                "opd",
                None,
                (
                    "there is neither a teacher nor a reward, so nothing to learn from",
                    "set opd, custom_rm_function, or both",
                ),
            );
        }
        return None;
    };
    let plain = shown(&Opd::from(Teacher::new("")));
    for ((name, value), (_, default)) in shown(opd).into_iter().zip(plain) {
        let origin = if value == default { Origin::Default } else { Origin::Yours };
        ledger.enter(name, value, origin);
    }
    if let Err((bound, remedy)) = check_url(&opd.teacher.url) {
        ledger.refuse("opd.teacher.url", shown_url(&opd.teacher), (bound, &remedy));
    }
    if let Some(SecretRef::Env(variable)) = &opd.teacher.token
        && !is_variable_name(variable)
    {
        // Not shown: it may be the token itself.
        let rule = ("must be the name of a variable", "name the variable that holds the token, not the token");
        ledger.refuse("opd.teacher.token_env", None, rule);
    }
    coef(ledger, opd, has_reward);
    if let Some(clamp) = opd.log_ratio_clamp {
        number(
            ledger,
            "opd.log_ratio_clamp",
            clamp,
            |clamp| clamp > 0.0,
            ("must be a number > 0", "set None to leave it unclamped"),
        );
    }
    at_least_1(ledger, "opd.max_concurrency", opd.max_concurrency, "set the requests in flight at once, such as 4");
    at_least_1(ledger, "opd.batch_size", opd.batch_size, "set the sequences of one request, such as 16");
    ledger.need(
        "opd.timeout",
        &opd.timeout,
        !opd.timeout.is_zero(),
        ("must be longer than 0", "set what one request may take"),
    );
    if let Some(top) = opd.top_k {
        top_k(ledger, opd, top);
    }
    Some(opd.spec())
}

fn top_k(ledger: &mut Ledger<'_>, opd: &Opd, top: TopK) {
    const NAME: &str = "opd.top_k";
    if !(1..=MOST_LIKELIEST).contains(&top.k) {
        let rule = ("its k must be in [1, 1024]", "set the tokens the teacher names a position, such as 64");
        ledger.refuse(NAME, top.shown(), rule);
    }
    match top.divergence {
        Divergence::AdaptiveKl { .. } => ledger.refuse(
            NAME,
            top.shown(),
            (
                "its blend is over the head of the whole distribution, and k tokens are not all of it",
                "take Divergence::ForwardKl, or a co-resident teacher",
            ),
        ),
        Divergence::ReverseKl | Divergence::Jsd { .. } if !top.tail => ledger.refuse(
            NAME,
            top.shown(),
            (
                "without a tail it weighs by the student, which then lowers it by moving its mass to tokens that the \
             teacher did not name",
                "leave tail at true, or take Divergence::ForwardKl, which weighs by the teacher",
            ),
        ),
        divergence => check_divergence(ledger, NAME, divergence),
    }
    if ledger.recipe().rollout_temperature.is_some_and(|temperature| temperature != 1.0) {
        ledger.refuse(
            NAME,
            top.shown(),
            (
                "a server's likeliest tokens are those of temperature 1, and rollout_temperature is another",
                "leave rollout_temperature unset, or learn from the sampled token alone",
            ),
        );
    }
    let plain = Opd::from(Teacher::new(""));
    if opd.log_ratio_clamp != plain.log_ratio_clamp {
        ledger.refuse(
            "opd.log_ratio_clamp",
            opd.log_ratio_clamp.map_or("off".to_owned(), |clamp| clamp.shown()),
            ("it belongs to the sampled token's term, which opd.top_k takes the place of", "leave it out"),
        );
    }
}

fn coef(ledger: &mut Ledger<'_>, opd: &Opd, has_reward: bool) {
    number(
        ledger,
        "opd.opd_kl_coef",
        opd.opd_kl_coef,
        |coef| coef >= 0.0,
        (
            "must be a number ≥ 0; a negative one would drive the student away from the teacher",
            "set the teacher's weight, such as 1.0",
        ),
    );
    if opd.opd_kl_coef == 0.0 && !has_reward {
        ledger.refuse(
            "opd.opd_kl_coef",
            "0.0".to_owned(),
            ("without a reward the teacher is all there is to learn from", "set a weight > 0, or custom_rm_function"),
        );
    }
}

/// The fields of an `Opd` that asks a server, as they may be shown.
fn shown(opd: &Opd) -> [(&'static str, String); 9] {
    [
        ("opd.teacher.url", shown_url(&opd.teacher)),
        ("opd.teacher.token", shown_token(&opd.teacher)),
        ("opd.teacher.dialect", opd.teacher.dialect.shown()),
        ("opd.opd_kl_coef", opd.opd_kl_coef.shown()),
        ("opd.log_ratio_clamp", opd.log_ratio_clamp.map_or("off".to_owned(), |clamp| clamp.shown())),
        ("opd.max_concurrency", opd.max_concurrency.shown()),
        ("opd.batch_size", opd.batch_size.shown()),
        ("opd.timeout", opd.timeout.shown()),
        ("opd.top_k", opd.top_k.map_or("off".to_owned(), |top| top.shown())),
    ]
}

/// The scheme of a deployment that has no address yet: the launch waits for it and fills it in.
pub(in crate::config) const BY_NAME: &str = "deployment";

/// The URL as it may be shown: a credential in it is left out.
fn shown_url(teacher: &Teacher) -> String {
    match (teacher.url.find("://"), teacher.url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}…{}", &teacher.url[..scheme + 3], &teacher.url[at..]),
        _ => teacher.url.clone(),
    }
}

/// Where the token is; what is no variable's name may be the token itself and is not shown.
fn shown_token(teacher: &Teacher) -> String {
    match &teacher.token {
        None => "none".to_owned(),
        Some(SecretRef::File(path)) => format!("in the file {}", path.display()),
        Some(SecretRef::Env(variable)) if is_variable_name(variable) => format!("in the variable {variable}"),
        Some(SecretRef::Env(_)) => "…".to_owned(),
    }
}

fn check_url(text: &str) -> Result<(), (&'static str, String)> {
    let Ok(url) = reqwest::Url::parse(text) else {
        return Err(("it is not a URL", "give the whole URL, such as http://127.0.0.1:8000/generate".to_owned()));
    };
    if url.scheme() == BY_NAME && url.has_host() {
        return Ok(());
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err((
            "must begin with http:// or https://",
            "give the whole URL, such as http://127.0.0.1:8000/generate".to_owned(),
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err((
            "it holds a credential, and the spec is stored as plain text",
            "name the variable that holds the token with Opd::token_env".to_owned(),
        ));
    }
    if url.path() == "/" {
        return Err(("it names a server but no path to ask", format!("did you mean {}generate?", url)));
    }
    Ok(())
}
