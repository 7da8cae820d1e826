//! Pairs people saw mis-scored, and texts made to hurt.

use std::time::{Duration, Instant};

use super::{LONGEST, Reason, Verdict, equivalent, grade};

#[test]
fn the_same_value_is_right() {
    let mut missed = Vec::new();
    for (answer, label) in [
        ("1024.", "1024"),
        ("**42**", "42"),
        (r"\$18", "18"),
        ("$18", "18"),
        (r"\$1,234,567.00", "1234567"),
        ("1,234", "1234"),
        (r"1{,}234", "1234"),
        ("０．５", "1/2"),
        ("4２", "42"),
        ("0.50", r"\frac{1}{2}"),
        (".5", r"\frac12"),
        (r"\dfrac{3}{4}", "0.75"),
        (r"\tfrac34", "3/4"),
        (r"3\frac{1}{2}", "7/2"),
        (r"2^{100}", "1267650600228229401496703205376"),
        ("2^10", "1024"),
        ("1267650600228229401496703205376", "1267650600228229401496703205376.0"),
        ("5 cm", "5"),
        ("5", r"5\text{ cm}"),
        (r"5 \text{ centimeters}", "5 cm"),
        ("20 apples", "20"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90°"),
        (r"50\%", "50"),
        ("50%", "0.5"),
        (r"\frac{\sqrt{8}}{2}", r"\sqrt{2}"),
        (r"2\sqrt3", r"\sqrt{12}"),
        (r"\sqrt[3]{27}", "3"),
        ("x = 5", "5"),
        (r"x\in[1,2)", "[1, 2)"),
        (r"1 \le x < 2", "[1,2)"),
        ("x > 3", r"(3, \infty)"),
        ("(1, 2)", r"\left( 1, \, 2 \right)"),
        ("1, 2", "2, 1"),
        (r"1 \text{ and } 2", r"\{2, 1\}"),
        (r"\pm 3", "3, -3"),
        (r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt{2}"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        ("y = 2x + 3", "2x - y + 3 = 0"),
        (r"\frac{\pi}{2}", "π/2"),
        (r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}", r"\begin{pmatrix}1\\0.5\end{pmatrix}"),
        (r"(-\infty, 2) \cup (3, 4]", r"(3,4] \cup (-\infty,2)"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"(\text{B})", "B"),
        ("10!", "3628800"),
        ("x = (1, 2)", "(1,2)"),
        (r"\binom{10}{3}", "120"),
        ("−7", "-7"),
        ("--7", "7"),
        (r"\log_2 8", "3"),
        ("3×10^8", "300000000"),
        (r"\text{42}", "42"),
        (r"\textbf{-3}", "-3"),
        (r"\mathbf{x}=4", "4"),
        (r"\boldsymbol{\frac{1}{2}}", "0.5"),
        ("1.5e3", "1500"),
        ("2E-2", "0.02"),
        ("1.5 × 10³", "1500"),
        ("10¹²", "1000000000000"),
        ("3 1/2", "7/2"),
        (r"0.\overline{3}", r"\frac13"),
        (r"0.1\overline{6}", "1/6"),
        ("⅓", "1/3"),
        ("٤٢", "42"),
        ("3 : 2", "3:2"),
        ("6:4", "3:2"),
        ("{1, 2, 3}", r"\{3,2,1\}"),
        (r"42\\", "42"),
        (r"42~\text{cm}", "42"),
        (r"42\ \text{cm}^2", "42"),
        (r"\text{42 cm}", "42"),
        ("= 42", "42"),
        ("≈ 3.14", "3.14"),
        (r"x \approx 3.14", "3.14"),
        (r"\nicefrac{1}{2}", "1/2"),
        (r"\lvert -3 \rvert", "3"),
        ("42 °C", "42"),
        ("5 square feet", r"5\text{ ft}^2"),
        ("5 cm²", "5 cm^2"),
        ("x = 5 or x = -3", "-3, 5"),
        ("1267650600228229401496703205376.0.", "2^{100}"),
        ("f(x) = x² + 1", "x^2+1"),
        ("10^{-3}", "0.001"),
        (r"\frac{-1}{2}", r"-\frac{1}{2}"),
        ("1 000 000", "1000000"),
    ] {
        let verdict = equivalent(answer, label);
        if verdict != Verdict::Right {
            missed.push(format!("{answer} and {label}: {verdict:?}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn another_value_is_wrong() {
    for (answer, label) in [
        ("1025", "1024"),
        ("0.33", r"\frac13"),
        ("1.414", r"\sqrt2"),
        ("5 cm", "5 m"),
        ("2xy", "2"),
        ("(1, 2)", "(2, 1)"),
        ("[1, 2]", "[1, 2)"),
        ("1, 2", "1, 2, 3"),
        ("1, 1", "1, 2"),
        ("x^2 + 1", "x^2 + 2"),
        ("x + y", "x + z"),
        ("1234", "1,235"),
        ("Monday", "Tuesday"),
        ("1267650600228229401496703205377", "2^{100}"),
        (r"\pm 3", "3"),
        ("no idea", "5"),
        ("42!", "42"),
        ("3 1/2", "3/2"),
        ("1.5e3", "1.5"),
        (r"0.\overline{3}", "0.3"),
        ("3:2", "2:3"),
        ("10¹²", "10"),
        ("{1, 2}", "{1, 3}"),
        (r"\text{42}", "43"),
        ("5 cm^2", "5 cm"),
        ("x_1", "x_2"),
        ("1/0", "5"),
    ] {
        let verdict = equivalent(answer, label);
        assert!(matches!(verdict, Verdict::Wrong | Verdict::Ungradable(Reason::NotUnderstood)), "{answer} and {label}");
        if answer != "1/0" {
            assert_eq!(verdict, Verdict::Wrong, "{answer} and {label}");
        }
    }
}

#[test]
fn what_a_response_states_last_counts() {
    for (response, label) in [
        (r"\boxed{3}, no: \boxed{\frac{1}{2}}", "0.5"),
        (r"so $\boxed 5$ it is", "5"),
        ("**Answer:** 12.", "12"),
        ("Answer: 3\nFinal answer: **4**", "4"),
        ("The answer is $7$.", "7"),
        ("steps\n#### 1,000", "1000"),
        (r"Answer: 9 but truly $\boxed{8}$", "8"),
        (r"\boxed{\{1, 2\}}", "1,2"),
        ("<answer> 42 </answer>", "42"),
        ("所以答案是 42。", "42"),
        ("**答案：** 42", "42"),
        ("**Final Answer**\n\n$42$", "42"),
        ("### Final answer\n42", "42"),
        ("Answer：４２", "42"),
        ("Final Answer: \\(42\\)", "42"),
    ] {
        assert_eq!(grade(response, label).verdict, Verdict::Right, "{response}");
    }
    let none = grade(r"I think \boxed{4", "4");
    assert_eq!((none.verdict, none.answer), (Verdict::Wrong, None));
    assert_eq!(grade("Answer: 4", " ").verdict, Verdict::Ungradable(Reason::NoLabel));
    assert_eq!(grade("Answer: 4", "4").score(), Ok(1.0));
}

#[test]
fn a_text_made_to_hurt_is_cut_off() {
    let begun = Instant::now();
    let tower = "9^{9^{9^{9^{9^{9^{9}}}}}}".to_owned();
    let cases = [
        (tower.clone(), Reason::TooLarge),
        (format!("{tower} - {tower} + 5"), Reason::TooLarge),
        ("2.5^{9999999}".to_owned(), Reason::TooLarge),
        ("99999999!".to_owned(), Reason::TooLarge),
        ("(".repeat(1000) + "1" + &")".repeat(999), Reason::TooDeep),
        (r"\sqrt".repeat(399) + "2", Reason::TooDeep),
        ("-".repeat(1500) + "5", Reason::TooDeep),
        ("1+".repeat(LONGEST), Reason::TooLong),
    ];
    for (answer, reason) in cases {
        let shown = &answer[..answer.len().min(30)];
        assert_eq!(equivalent(&answer, "5"), Verdict::Ungradable(reason), "{shown}");
    }
    let megabyte = format!(r"\boxed{{{}", "{".repeat(1 << 20));
    assert_eq!(grade(&megabyte, "5").verdict, Verdict::Wrong);
    let closed = format!(r"\boxed{{{}{}}}", "{".repeat(1 << 19), "}".repeat(1 << 19));
    assert_eq!(grade(&closed, "5").verdict, Verdict::Ungradable(Reason::TooLong));
    let boxes = r"\boxed{".repeat(100_000);
    assert_eq!(grade(&boxes, "5").verdict, Verdict::Wrong);
    // Generous: what would hang takes for ever.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Where the benchmark's own rule finds the box right, so does this one, on every row of the reference.
#[test]
fn what_the_benchmark_finds_right_is_right() {
    let shared = std::env::var("TRAINING_GYM_SHARED").unwrap_or_else(|_| "../../shared".to_owned());
    let path = std::path::Path::new(&shared).join("golden/rewards.jsonl");
    let Ok(rows) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is absent", path.display());
        return;
    };
    let (mut agreed, mut missed, mut fooled) = (0, Vec::new(), Vec::new());
    for line in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| row[name].as_str().unwrap();
        let grade = grade(text("response"), text("ground_truth"));
        // What was spoilt stays wrong; but 1! is 1, and -0 is 0.
        let unspoilt = ["1!", "2!", "-0"].iter().any(|same| text("response").contains(same));
        if text("tag") == "math500.wrong" && !unspoilt && grade.verdict == Verdict::Right {
            fooled.push(format!("{}: {:?} as {}", text("id"), grade.answer, text("ground_truth")));
        }
        if row["boxed"] == 1.0 {
            match grade.verdict {
                Verdict::Right => agreed += 1,
                _ => missed.push(text("id").to_owned()),
            }
        }
    }
    assert!(fooled.is_empty(), "{fooled:#?}");
    // `50\\\\%`, and a box after which an `\fbox` says something else.
    assert_eq!((agreed, missed.as_slice()), (1281, ["03380".to_owned(), "03396".to_owned()].as_slice()));
}

#[test]
fn no_text_panics() {
    let pieces =
        [r"\frac", "{", "}", "^", "_", "1", ".", ",", "(", ")", r"\sqrt", "[", "]", "x", "-", "é", r"\", "|", "!", " "];
    let mut state = 7_u64;
    for _ in 0..4_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
        }
        equivalent(&text, r"\frac{1}{2}");
        equivalent("1", &text);
    }
}
