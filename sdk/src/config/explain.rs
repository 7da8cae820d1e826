//! Each value of a run and where it came from.

use std::fmt;

use super::Model;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program set it to something the preset does not say.
    Yours,
    /// The preset of this model.
    Preset(Model),
    /// Worked out from other values.
    Derived(&'static str),
    /// The one default for all models.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yours => out.write_str("yours"),
            Self::Preset(model) => write!(out, "preset {model}"),
            Self::Derived(how) => write!(out, "derived: {how}"),
            Self::Default => out.write_str("default"),
        }
    }
}

/// One field's value and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The field's name in [`super::Recipe`].
    pub name: String,
    /// Its value as text.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// All settings of a run, to read ([`Explanation::origin`]) or to print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// In the order of the recipe's fields.
    pub settings: Vec<Setting>,
    /// What a person should know although nothing is wrong.
    pub notes: Vec<String>,
}

impl Explanation {
    /// The setting of a field by its name.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// Where a field's value came from.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        self.get(name).map(|setting| setting.origin)
    }
}

/// Longest name or value that widens its column.
const WIDEST: usize = 40;

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Setting) -> &str| {
            let widths = self.settings.iter().map(|setting| text(setting).chars().count());
            widths.filter(|width| *width <= WIDEST).max().unwrap_or(0)
        };
        let (names, values) = (width(|setting| &setting.name), width(|setting| &setting.value));
        for Setting { name, value, origin } in &self.settings {
            writeln!(out, "{name:names$}  {value:values$}  {origin}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
    }
}
