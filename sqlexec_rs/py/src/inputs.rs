//! Converts Python arguments to values that the core owns. Equal paths and options share an allocation; texts are
//! deduplicated in the core.
//!
//! A batch is converted in two steps. First all of it is checked, so that a wrong item raises before anything runs.
//! Then its texts are copied batch by batch, while threads run the earlier ones.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashTable;
use pyo3::exceptions::{PyTypeError, PyUnicodeEncodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use sqlexec_core::hashed_str::Hashed;
use sqlexec_core::{Batches, GoldSource, HALF_PAIR, Options, Rule, ScoreItem, Table};

use crate::convert::{table_from_python, wrong_type};
use crate::outcome::Outcome;

/// Returns the items of a sequence. Rejects `str`, which is a sequence too but never the intended one.
pub(crate) fn items<'py>(name: &str, argument: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if argument.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("{name} must be a sequence, not a str")));
    }
    if let Ok(list) = argument.cast_exact::<PyList>() {
        return Ok(list.iter().collect());
    }
    argument.try_iter()?.collect()
}

/// Parses the rules by name.
pub(crate) fn rules_of(names: &[String]) -> PyResult<Vec<Rule>> {
    let parse = |name: &String| {
        name.parse().map_err(|error| {
            let known = Rule::ALL.iter().map(|rule| rule.name()).collect::<Vec<_>>().join(", ");
            PyValueError::new_err(format!("{error}; the rules are {known}"))
        })
    };
    names.iter().map(parse).collect()
}

/// The databases of an item.
type Paths = Arc<[Arc<Path>]>;

/// The accepted answers of an item.
type Golds = Arc<[GoldSource]>;

/// State shared by the arguments of one call.
#[derive(Default)]
pub(crate) struct Inputs {
    paths: HashMap<PathBuf, Arc<Path>>,
    path_lists: HashMap<Vec<PathBuf>, Paths>,
    /// The paths given as `str`, each as a single-element list.
    path_texts: HashTable<(Hashed<Arc<str>>, Paths)>,
    /// Golds other than texts, by address.
    golds: HashMap<usize, Golds>,
    options: HashMap<Options, Arc<Options>>,
}

/// Rejects an argument that is not a SQL text.
fn check_text(argument: &Bound<'_, PyAny>) -> PyResult<()> {
    if argument.is_none() || argument.is_instance_of::<PyString>() {
        return Ok(());
    }
    Err(wrong_type("SQL must be a str or None", argument))
}

/// Converts a SQL text. `None` is a completion without SQL. A text with an unpaired surrogate becomes one that no
/// engine runs.
pub(crate) fn sql_text(argument: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
    if argument.is_none() {
        return Ok("".into());
    }
    let text = argument.cast::<PyString>().map_err(|_| wrong_type("SQL must be a str or None", argument))?;
    sql_of(text)
}

fn sql_of(text: &Bound<'_, PyString>) -> PyResult<Arc<str>> {
    match text.to_str() {
        Ok(text) => Ok(text.into()),
        Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(text.py()) => {
            let position: usize = error.value(text.py()).getattr("start")?.extract()?;
            Ok(format!("{HALF_PAIR}character {}", position + 1).into())
        }
        Err(error) => Err(error),
    }
}

/// Creates the error for an argument that is not a path, such as a text with an unpaired surrogate.
fn no_path(wanted: &str, argument: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    if error.is_instance_of::<PyUnicodeEncodeError>(argument.py()) {
        return PyValueError::new_err("the name of a database holds half a surrogate pair, which is not a character");
    }
    wrong_type(wanted, argument)
}

impl Inputs {
    /// Converts the path of a database.
    pub(crate) fn path(&mut self, argument: &Bound<'_, PyAny>) -> PyResult<Arc<Path>> {
        let path =
            argument.extract::<PathBuf>().map_err(|error| no_path("a database must be a path", argument, &error))?;
        Ok(self.intern_path(path))
    }

    fn intern_path(&mut self, path: PathBuf) -> Arc<Path> {
        if let Some(known) = self.paths.get(&path) {
            return Arc::clone(known);
        }
        let shared: Arc<Path> = path.as_path().into();
        self.paths.insert(path, Arc::clone(&shared));
        shared
    }

    /// Converts a path, or a list or tuple of paths.
    fn databases(&mut self, argument: &Bound<'_, PyAny>) -> PyResult<Paths> {
        let Some(text) = argument.cast::<PyString>().ok().and_then(|text| text.to_str().ok()) else {
            return self.path_list(argument);
        };
        let text = Hashed::new(text);
        if let Some((_, known)) = self.path_texts.find(text.hash(), |(known, _)| known.is(&text)) {
            return Ok(Arc::clone(known));
        }
        let shared = self.path_list(argument)?;
        let entry = (text.with(text.text.into()), Arc::clone(&shared));
        self.path_texts.insert_unique(text.hash(), entry, |(known, _)| known.hash());
        Ok(shared)
    }

    fn path_list(&mut self, argument: &Bound<'_, PyAny>) -> PyResult<Paths> {
        let is_list = argument.is_instance_of::<PyList>() || argument.is_instance_of::<PyTuple>();
        let paths: Vec<PathBuf> = if is_list {
            argument.extract().map_err(|error| no_path("databases must be paths", argument, &error))?
        } else {
            let wanted = "a database must be a path or a list of paths";
            vec![argument.extract().map_err(|error| no_path(wanted, argument, &error))?]
        };
        if paths.is_empty() {
            return Err(PyValueError::new_err("an item needs at least one database"));
        }
        if let Some(known) = self.path_lists.get(&paths) {
            return Ok(Arc::clone(known));
        }
        let shared: Paths = paths.iter().map(|path| self.intern_path(path.clone())).collect();
        self.path_lists.insert(paths, Arc::clone(&shared));
        Ok(shared)
    }

    /// Converts a gold: SQL, a table, or a list of them.
    fn gold<'py>(&mut self, argument: &Bound<'py, PyAny>) -> PyResult<Gold<'py>> {
        if let Ok(text) = argument.cast::<PyString>() {
            return Ok(Gold::Text(text.clone()));
        }
        let key = argument.as_ptr().addr();
        if let Some(known) = self.golds.get(&key) {
            return Ok(Gold::Taken(Arc::clone(known)));
        }
        let sources: Golds = if let Ok(list) = argument.cast::<PyList>() {
            list.iter().map(|item| gold_source(&item)).collect::<PyResult<_>>()?
        } else {
            [gold_source(argument)?].into()
        };
        if sources.is_empty() {
            return Err(PyValueError::new_err("an item needs at least one gold"));
        }
        self.golds.insert(key, Arc::clone(&sources));
        Ok(Gold::Taken(sources))
    }

    /// Converts an item's options: `None` or a dict. Equal options share an allocation.
    fn options(&mut self, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<Options>> {
        let mut options = Options::default();
        if let Some(argument) = argument.filter(|argument| !argument.is_none()) {
            let dict = argument
                .cast::<PyDict>()
                .map_err(|_| wrong_type("an item's options must be a dict or None", argument))?;
            for (name, value) in dict.iter() {
                set_option(&mut options, &name.extract::<String>()?, &value)?;
            }
        }
        if let Some(known) = self.options.get(&options) {
            return Ok(Arc::clone(known));
        }
        let shared = Arc::new(options.clone());
        self.options.insert(options, Arc::clone(&shared));
        Ok(shared)
    }

    /// Converts an item to score.
    pub(crate) fn score_item<'py>(
        mut self,
        databases: &Bound<'py, PyAny>,
        predicted: &Bound<'py, PyAny>,
        gold: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Batch<'py>> {
        check_text(predicted)?;
        Ok(Batch {
            databases: vec![self.databases(databases)?],
            predicted: vec![predicted.clone()],
            golds: vec![self.gold(gold)?],
            options: vec![self.options(options)?],
        })
    }

    /// Converts three sequences of equal length.
    pub(crate) fn score_items<'py>(
        mut self,
        databases: &Bound<'py, PyAny>,
        predicted: &Bound<'py, PyAny>,
        golds: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Batch<'py>> {
        let (databases, predicted) = (items("db_paths", databases)?, items("pred_sqls", predicted)?);
        let golds = items("golds", golds)?;
        if databases.len() != predicted.len() || predicted.len() != golds.len() {
            let lengths = format!("{} db_paths, {} pred_sqls, {} golds", databases.len(), predicted.len(), golds.len());
            return Err(PyValueError::new_err(format!("the sequences differ in length: {lengths}")));
        }
        let one_each = match options {
            Some(list) if !list.is_none() && !list.is_instance_of::<PyDict>() => Some(items("options", list)?),
            _ => None,
        };
        if let Some(list) = one_each.as_ref().filter(|list| list.len() != golds.len()) {
            let lengths = format!("{} options for {} items", list.len(), golds.len());
            return Err(PyValueError::new_err(format!("the sequences differ in length: {lengths}")));
        }
        let mut batch = Batch {
            databases: Vec::with_capacity(golds.len()),
            golds: Vec::with_capacity(golds.len()),
            predicted,
            options: Vec::new(),
        };
        for (i, (database, gold)) in databases.iter().zip(&golds).enumerate() {
            let mut take = || {
                batch.databases.push(self.databases(database)?);
                check_text(&batch.predicted[i])?;
                batch.golds.push(self.gold(gold)?);
                if let Some(list) = &one_each {
                    batch.options.push(self.options(Some(&list[i]))?);
                } else if i == 0 {
                    batch.options.push(self.options(options)?);
                }
                Ok(())
            };
            take().map_err(|error| at_item(gold.py(), i, error))?;
        }
        Ok(batch)
    }
}

/// A gold being converted.
enum Gold<'py> {
    /// A text that Python still owns.
    Text(Bound<'py, PyString>),
    Taken(Golds),
}

/// Checked items to score, whose texts Python still owns.
pub(crate) struct Batch<'py> {
    databases: Vec<Paths>,
    /// Each is a `str` or `None`.
    predicted: Vec<Bound<'py, PyAny>>,
    golds: Vec<Gold<'py>>,
    /// One per item, or a single one for all.
    options: Vec<Arc<Options>>,
}

impl Batch<'_> {
    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.golds.len()
    }

    /// Returns the number of (database, SQL) pairs of the items.
    pub(crate) fn n_pairs(&self) -> usize {
        let n_sql = |gold: &Gold<'_>| match gold {
            Gold::Text(_) => 1,
            Gold::Taken(golds) => golds.iter().filter(|gold| matches!(gold, GoldSource::Sql(_))).count(),
        };
        self.databases.iter().zip(&self.golds).map(|(paths, gold)| paths.len() * (1 + n_sql(gold))).sum()
    }

    /// Returns the batches in which to convert the items.
    pub(crate) fn batches(&self) -> Batches {
        Batches::new(self.databases.iter().map(|paths| paths.as_ptr().addr()))
    }

    /// Converts the items with these numbers. If consecutive items share a gold object, as in a group of answers to
    /// one question, it is copied once.
    pub(crate) fn take(&self, numbers: &[u32]) -> PyResult<Vec<(u32, ScoreItem)>> {
        let mut last: Option<(usize, Golds)> = None;
        let mut golds_of = |gold: &Gold<'_>| match gold {
            Gold::Taken(golds) => Ok::<_, PyErr>(Arc::clone(golds)),
            Gold::Text(text) => {
                let key = text.as_ptr().addr();
                match &last {
                    Some((known, golds)) if *known == key => Ok(Arc::clone(golds)),
                    _ => {
                        let golds: Golds = [GoldSource::Sql(sql_of(text)?)].into();
                        last = Some((key, Arc::clone(&golds)));
                        Ok(golds)
                    }
                }
            }
        };
        let take = |number: &u32| {
            let at = *number as usize;
            let item = ScoreItem {
                databases: Arc::clone(&self.databases[at]),
                predicted: sql_text(&self.predicted[at])?,
                golds: golds_of(&self.golds[at])?,
                options: Arc::clone(&self.options[at.min(self.options.len() - 1)]),
            };
            Ok((*number, item))
        };
        numbers.iter().map(take).collect()
    }
}

/// Converts an accepted answer: SQL or a table.
fn gold_source(argument: &Bound<'_, PyAny>) -> PyResult<GoldSource> {
    if argument.is_instance_of::<PyString>() {
        return Ok(GoldSource::Sql(sql_text(argument)?));
    }
    if let Ok(outcome) = argument.cast::<Outcome>() {
        let table = outcome.get().table().ok_or_else(|| PyValueError::new_err("a gold outcome must be ok"))?;
        if outcome.get().is_cut() {
            return Err(PyValueError::new_err("a gold outcome must be complete, but this one was cut"));
        }
        return Ok(GoldSource::Table(Arc::clone(table)));
    }
    match argument.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => {
            let columns = pair.get_item(0)?;
            if columns.is_instance_of::<PyString>() {
                return Err(PyTypeError::new_err("a gold tuple must be (columns, rows); pass several golds as a list"));
            }
            let table: Table = table_from_python(&columns, &pair.get_item(1)?)?;
            Ok(GoldSource::Table(Arc::new(table)))
        }
        _ => Err(wrong_type("a gold must be SQL, (columns, rows), an Outcome, or a list of these", argument)),
    }
}

/// Adds the index of the wrong item to an error.
fn at_item(py: Python<'_>, i: usize, error: PyErr) -> PyErr {
    let message = format!("item {i}: {}", error.value(py));
    if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(message)
    } else {
        error
    }
}

fn set_option(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "asks_for_order" => options.asks_for_order = value.extract()?,
        "condition_cols" => options.condition_cols = value.extract()?,
        "drop_duplicates" => options.drop_duplicates = value.extract()?,
        "ignore_order" => options.ignore_order = value.extract()?,
        "ordered" => options.ordered = value.extract()?,
        "row_slack" => options.row_slack = value.extract()?,
        "surplus_columns" => options.surplus_columns = surplus_columns(value)?,
        "strip_distinct" => options.strip_distinct = value.extract()?,
        _ => {
            let known = "asks_for_order, condition_cols, drop_duplicates, ignore_order, ordered, row_slack, \
                         strip_distinct, surplus_columns";
            return Err(PyValueError::new_err(format!("no option is named {name:?}; the options are {known}")));
        }
    }
    Ok(())
}

/// Converts a number above 0, or None: with 0 no prediction could be correct.
fn surplus_columns(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    match value.extract()? {
        Some(0) => Err(PyValueError::new_err("surplus_columns must be at least 1 (no surplus column), or None")),
        columns => Ok(columns),
    }
}
