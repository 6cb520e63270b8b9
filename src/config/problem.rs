//! Everything that is wrong with a configuration, reported together.
//!
//! Each [`Problem`] names the key, the rule it breaks and the remedy. Only problems of command lines show the value: text in
//! a configuration may be a secret under the wrong key.

use std::fmt;

/// One thing that must be corrected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, file or variable it is about.
    pub key: String,
    /// The value of a command-line option, as written; `None` for a key of a configuration.
    pub value: Option<String>,
    /// What the value has to be, or what is wrong.
    pub rule: String,
    /// What to do.
    pub remedy: String,
}

impl Problem {
    /// A problem without a value.
    pub(crate) fn new(key: impl Into<String>, rule: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, rule: rule.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} = {value}: {}; {}", self.key, self.rule, self.remedy),
            None => write!(f, "{}: {}; {}", self.key, self.rule, self.remedy),
        }
    }
}

/// All problems, one per line. Never empty when returned as an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl Problems {
    /// Adds a problem, unless it is already listed.
    pub(crate) fn push(&mut self, problem: Problem) {
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Adds a problem of a key.
    pub(crate) fn add(&mut self, key: impl Into<String>, rule: impl Into<String>, remedy: impl Into<String>) {
        self.push(Problem::new(key, rule, remedy));
    }

    pub(crate) fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|problem| self.push(problem));
    }

    /// The problems in the order they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no problems.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Something that works, but probably not as meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The key, file or variable it is about.
    pub key: String,
    /// What is unusual, and what to do about it.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_one_line_with_its_remedy() {
        let mut problems = Problems::default();
        problems.push(Problem {
            key: "--tasks".into(),
            value: Some("zero".into()),
            rule: "must be a whole number".into(),
            remedy: "correct it".into(),
        });
        problems.add("topic.prefix", "is required", "set it");
        problems.add("topic.prefix", "is required", "set it");

        assert_eq!(
            problems.to_string(),
            "--tasks = zero: must be a whole number; correct it\ntopic.prefix: is required; set it"
        );
    }
}
