//! `strftime_now`: today's date for templates that print it. UTC, so that two machines agree.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `datetime.now(utc).strftime(format)`.
pub(super) fn strftime_now(format: &str) -> String {
    strftime(format, SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// `strftime` of a Unix time in UTC, in the C locale. A directive it does not know is kept.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let day_of_year = days - (days_before_year(year)) + 1;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let weekday = ((days + 3) % 7) as usize;
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        // glibc's flag for "no padding", which templates use for days.
        let (directive, padded) = if directive == Some('-') { (chars.next(), false) } else { (directive, true) };
        let number = |value: u64, width: usize| if padded { format!("{value:0width$}") } else { value.to_string() };
        match directive {
            Some('Y') => out.push_str(&number(year, 4)),
            Some('y') => out.push_str(&number(year % 100, 2)),
            Some('m') => out.push_str(&number(month, 2)),
            Some('d') => out.push_str(&number(day, 2)),
            Some('e') if padded => out.push_str(&format!("{day:2}")),
            Some('e') => out.push_str(&number(day, 2)),
            Some('H') => out.push_str(&number(hour, 2)),
            Some('I') => out.push_str(&number(hour12, 2)),
            Some('M') => out.push_str(&number(minute, 2)),
            Some('S') => out.push_str(&number(second, 2)),
            Some('j') => out.push_str(&number(day_of_year, 3)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('a') => out.push_str(&DAYS[weekday][..3]),
            Some('A') => out.push_str(DAYS[weekday]),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('B') => out.push_str(month_name),
            Some('w') => out.push_str(&((weekday + 1) % 7).to_string()),
            Some('u') => out.push_str(&(weekday + 1).to_string()),
            Some('F') => out.push_str(&format!("{year:04}-{month:02}-{day:02}")),
            Some('T' | 'X') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('D' | 'x') => out.push_str(&format!("{month:02}/{day:02}/{:02}", year % 100)),
            Some('R') => out.push_str(&format!("{hour:02}:{minute:02}")),
            Some('s') => out.push_str(&seconds.to_string()),
            Some('z' | 'Z') => {}
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

fn days_before_year(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400 - 719_162
}

/// Year, month, day of a day counted from 1970-01-01.
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_pythons() {
        assert_eq!(strftime("%d %b %Y", 1_721_952_000), "26 Jul 2024");
        assert_eq!(strftime("%A, %B %-d %Y %j %H:%M:%S %p %I %y%%", 951_782_400 + 3 * 3600 + 65), {
            "Tuesday, February 29 2000 060 03:01:05 AM 03 00%"
        });
        assert_eq!(strftime("%Y-%m-%d %a", 0), "1970-01-01 Thu");
        assert_eq!(strftime("%Q%", 0), "%Q%");
        assert_eq!(strftime_now("%Y").len(), 4);
    }
}
