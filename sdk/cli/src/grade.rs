//! `gym grade`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use training_gym::eval::{Grader, Judgement};
use training_gym::external::serde_json::{self, Map, Value, json};

use crate::args::Grade;
use crate::output;

/// Bytes of one line: more is no response that anyone grades.
const LONGEST_LINE: u64 = 256 << 20;
/// Bytes of a report of `gym eval`, which is one document.
const LONGEST_REPORT: u64 = 1 << 30;
/// Columns a label may be in, the first that is there.
const LABELS: [&str; 3] = ["label", "ground_truth", "answer"];
/// Characters of an answer in the table.
const SHOWN: usize = 40;

/// What is counted of one grader.
#[derive(Default)]
struct Counts {
    right: u64,
    wrong: u64,
    ungradable: u64,
}

impl Counts {
    fn add(&mut self, judged: &Judgement) {
        match judged.word() {
            "right" => self.right += 1,
            "wrong" => self.wrong += 1,
            _ => self.ungradable += 1,
        }
    }

    fn document(&self) -> Value {
        json!({"right": self.right, "wrong": self.wrong, "ungradable": self.ungradable})
    }
}

pub(crate) fn run(asked: &Grade, as_json: bool) -> Result<()> {
    let graders: Vec<Grader> = match &asked.compare {
        Some(names) => names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
        None => vec![asked.grader.parse()?],
    };
    if let [a, b] = graders.as_slice()
        && a == b
    {
        bail!("--compare takes two graders, and both are {a}");
    }
    let mut counts: Vec<Counts> = graders.iter().map(|_| Counts::default()).collect();
    let (mut rows, mut disagree, mut listed) = (0_u64, 0_u64, Vec::new());
    each(asked, &mut |name, response, label| {
        let judged: Vec<Judgement> = graders.iter().map(|grader| grader.judge(response, label)).collect();
        for (counts, judged) in counts.iter_mut().zip(&judged) {
            counts.add(judged);
        }
        rows += 1;
        let differs = judged.iter().any(|one| one.word() != judged[0].word());
        disagree += u64::from(differs);
        match (graders.len(), as_json) {
            (1, true) => output::line(&serde_json::to_string(&line(name, label, &graders, &judged))?)?,
            (2, true) if differs => output::line(&serde_json::to_string(&line(name, label, &graders, &judged))?)?,
            (2, false) if differs => listed.push(cells(name, label, &judged)),
            _ => {}
        }
        Ok(())
    })?;
    if as_json {
        let of: Map<String, Value> =
            graders.iter().zip(&counts).map(|(grader, counts)| (grader.to_string(), counts.document())).collect();
        return output::line(&json!({"rows": rows, "disagree": disagree, "graders": of}).to_string());
    }
    if let [a, b] = graders.as_slice()
        && !listed.is_empty()
    {
        output::table(&["ROW", &a.to_string(), &b.to_string(), "ANSWER A", "ANSWER B", "LABEL"], &listed)?;
    }
    for (grader, Counts { right, wrong, ungradable }) in graders.iter().zip(&counts) {
        output::line(&format!("{grader}: {right} right, {wrong} wrong, {ungradable} ungradable of {rows}"))?;
    }
    if graders.len() == 2 {
        output::line(&format!("they disagree on {disagree} of {rows}"))?;
    }
    Ok(())
}

fn line(name: &str, label: &str, graders: &[Grader], judged: &[Judgement]) -> Value {
    let of: Map<String, Value> =
        graders.iter().zip(judged).map(|(grader, judged)| (grader.to_string(), json!(judged))).collect();
    json!({"row": name, "label": label, "graders": of})
}

fn cells(name: &str, label: &str, judged: &[Judgement]) -> Vec<String> {
    let short = |text: &str| {
        let mut short: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(SHOWN).is_some() {
            short.push('…');
        }
        short
    };
    let answer = |judged: &Judgement| match &judged.answer {
        Some(answer) => short(answer),
        None => "-".to_owned(),
    };
    let mut cells = vec![name.to_owned()];
    cells.extend(judged.iter().map(|judged| judged.word().to_owned()));
    cells.extend(judged.iter().map(answer));
    cells.push(short(label));
    cells
}

/// Who is told of each row: its name, its response, its label.
type Visit<'a> = dyn FnMut(&str, &str, &str) -> Result<()> + 'a;

/// Visits each response of a file, line by line.
fn each(asked: &Grade, visit: &mut Visit<'_>) -> Result<()> {
    let path = &asked.file;
    let cannot_read = || format!("cannot read `{}`", path.display());
    let mut reader = BufReader::new(File::open(path).with_context(cannot_read)?);
    let (mut buffer, mut number, mut rows) = (Vec::new(), 0_u64, 0_u64);
    loop {
        buffer.clear();
        number += 1;
        let count = (&mut reader).take(LONGEST_LINE + 1).read_until(b'\n', &mut buffer).with_context(cannot_read)?;
        if count as u64 > LONGEST_LINE {
            bail!("{}:{number}: the line has more than {} MiB", path.display(), LONGEST_LINE >> 20);
        }
        if count == 0 {
            break;
        }
        let text = buffer.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let parsed = serde_json::from_slice::<Value>(text);
        let may_be_report = parsed.as_ref().map_or(true, |value| value.get("rows").is_some());
        if number == 1
            && may_be_report
            && let Some(report) = report(path)?
        {
            return replies(&report, visit);
        }
        let row = parsed.map_err(|error| anyhow!("{}:{number}: not JSON: {error}", path.display()))?;
        let (response, label) =
            row_of(&row, asked).map_err(|problem| anyhow!("{}:{number}: {problem}", path.display()))?;
        let name = row.get("id").or_else(|| row.get("index")).map_or_else(|| number.to_string(), plain);
        visit(&name, response, &label)?;
        rows += 1;
    }
    if rows == 0 {
        bail!("`{}` has no rows", path.display());
    }
    Ok(())
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn row_of<'a>(row: &'a Value, asked: &Grade) -> Result<(&'a str, String), String> {
    let keys = || {
        let keys: Vec<&str> = row.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        keys.join(", ")
    };
    let response = row.get(&asked.response_key).and_then(Value::as_str);
    let response = response.ok_or_else(|| {
        format!("no text `{}`; there are {}: name it with --response-key", asked.response_key, keys())
    })?;
    let label = match &asked.label_key {
        Some(key) => row.get(key),
        None => LABELS.iter().find_map(|key| row.get(*key)),
    };
    let label = label.ok_or_else(|| format!("no label; there are {}: name it with --label-key", keys()))?;
    Ok((response, plain(label)))
}

/// A report of `gym eval`, if that is what the file is.
fn report(path: &Path) -> Result<Option<Value>> {
    let file = File::open(path)?;
    if file.metadata()?.len() > LONGEST_REPORT {
        return Ok(None);
    }
    let report = serde_json::from_reader::<_, Value>(BufReader::new(file)).ok();
    Ok(report.filter(|report| report.get("rows").is_some_and(Value::is_array)))
}

fn replies(report: &Value, visit: &mut Visit<'_>) -> Result<()> {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    for row in list(report, "rows") {
        let label = row.get("label").map(plain).unwrap_or_default();
        for (sample, outcome) in list(&row, "samples").iter().enumerate() {
            let text = |key| outcome.get(key).and_then(Value::as_str);
            // One that failed has no content; one that never stopped thinking has an empty one.
            if let Some(content) = text("content") {
                let content = text("reasoning_content").filter(|_| content.is_empty()).unwrap_or(content);
                let name = format!("{}.{sample}", row.get("row").map(plain).unwrap_or_default());
                visit(&name, content, &label)?;
            }
        }
    }
    Ok(())
}
