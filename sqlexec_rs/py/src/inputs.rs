//! Python arguments into what the core owns; equal golds, paths and options become one allocation, so that the core sees
//! at once which items are equal. Predictions are told apart there, by their texts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashTable;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use sqlexec_core::texts::Hashed;
use sqlexec_core::{GoldSource, Options, Rule, ScoreItem, Table};

use crate::convert::table_from_python;
use crate::outcome::Outcome;

/// Takes the items of a sequence; a `str` is a sequence too, but never the one that was meant.
pub(crate) fn items<'py>(name: &str, argument: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if argument.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("{name} must be a sequence, not a str")));
    }
    argument.try_iter()?.collect()
}

/// Takes the rules by name.
pub(crate) fn rules_of(names: &[String]) -> PyResult<Vec<Rule>> {
    let parse = |name: &String| {
        name.parse().map_err(|error| {
            let known = Rule::ALL.map(Rule::name).join(", ");
            PyValueError::new_err(format!("{error}; the rules are {known}"))
        })
    };
    names.iter().map(parse).collect()
}

/// The databases of an item.
type Paths = Arc<[Arc<Path>]>;

/// The accepted answers of an item.
type Golds = Arc<[GoldSource]>;

/// What one call has seen so far.
#[derive(Default)]
pub(crate) struct Inputs {
    /// The golds that are a text, each as a list of one.
    gold_texts: HashTable<(Hashed<Arc<str>>, Golds)>,
    paths: HashMap<PathBuf, Arc<Path>>,
    path_lists: HashMap<Vec<PathBuf>, Paths>,
    /// The paths that were given as a `str`, each as a list of one.
    path_texts: HashTable<(Hashed<Arc<str>>, Paths)>,
    /// Golds that are no text, by address.
    golds: HashMap<usize, Golds>,
    options: HashMap<Options, Arc<Options>>,
}

/// Takes a SQL text. `None` is a completion that holds no SQL; half a surrogate pair, which no file holds, is replaced.
pub(crate) fn text(argument: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
    if argument.is_none() {
        return Ok("".into());
    }
    let text = argument.cast::<PyString>().map_err(|_| wrong_type("SQL must be a str or None", argument))?;
    Ok(text.to_string_lossy().as_ref().into())
}

impl Inputs {
    /// Takes the path of a database.
    pub(crate) fn path(&mut self, argument: &Bound<'_, PyAny>) -> PyResult<Arc<Path>> {
        let path = argument.extract::<PathBuf>().map_err(|_| wrong_type("a database must be a path", argument))?;
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

    /// Takes one path, or a list or tuple of paths.
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
            argument.extract().map_err(|_| wrong_type("databases must be paths", argument))?
        } else {
            vec![argument.extract().map_err(|_| wrong_type("a database must be a path or a list of paths", argument))?]
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

    /// Takes a gold: SQL, a table, or a list of them.
    fn gold(&mut self, argument: &Bound<'_, PyAny>) -> PyResult<Golds> {
        if let Ok(text) = argument.cast::<PyString>() {
            return Ok(self.gold_text(&text.to_string_lossy()));
        }
        let key = argument.as_ptr().addr();
        if let Some(known) = self.golds.get(&key) {
            return Ok(Arc::clone(known));
        }
        let sources: Golds = if let Ok(list) = argument.cast::<PyList>() {
            list.iter().map(|one| gold_source(&one)).collect::<PyResult<_>>()?
        } else {
            [gold_source(argument)?].into()
        };
        if sources.is_empty() {
            return Err(PyValueError::new_err("an item needs at least one gold"));
        }
        self.golds.insert(key, Arc::clone(&sources));
        Ok(sources)
    }

    fn gold_text(&mut self, text: &str) -> Golds {
        let text = Hashed::new(text);
        let make = || {
            let shared: Arc<str> = text.text.into();
            (text.with(Arc::clone(&shared)), [GoldSource::Sql(shared)].into())
        };
        let entry = self.gold_texts.entry(text.hash(), |(known, _)| known.is(&text), |(known, _)| known.hash());
        Arc::clone(&entry.or_insert_with(make).get().1)
    }

    /// Takes an item's choices: `None` or a dict; equal choices become one allocation.
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

    /// Takes one item to score.
    pub(crate) fn score_item(
        &mut self,
        databases: &Bound<'_, PyAny>,
        predicted: &Bound<'_, PyAny>,
        gold: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ScoreItem> {
        Ok(ScoreItem {
            databases: self.databases(databases)?,
            predicted: text(predicted)?,
            golds: self.gold(gold)?,
            options: self.options(options)?,
        })
    }

    /// Takes three sequences of one length.
    pub(crate) fn score_items(
        &mut self,
        databases: &Bound<'_, PyAny>,
        predicted: &Bound<'_, PyAny>,
        golds: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<ScoreItem>> {
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
        self.gold_texts.reserve(golds.len(), |(known, _)| known.hash());
        let rows = databases.iter().zip(&predicted).zip(&golds).enumerate();
        let mut shared = None;
        let mut item = |i: usize, database, predicted, gold| {
            let (databases, predicted, golds) = (self.databases(database)?, text(predicted)?, self.gold(gold)?);
            let options = match (&one_each, &shared) {
                (Some(list), _) => self.options(Some(&list[i]))?,
                (None, Some(shared)) => Arc::clone(shared),
                (None, None) => Arc::clone(shared.insert(self.options(options)?)),
            };
            Ok(ScoreItem { databases, predicted, golds, options })
        };
        rows.map(|(i, ((database, predicted), gold))| {
            item(i, database, predicted, gold).map_err(|error| at_item(gold.py(), i, error))
        })
        .collect()
    }
}

/// Takes one accepted answer: SQL or a table.
fn gold_source(argument: &Bound<'_, PyAny>) -> PyResult<GoldSource> {
    if argument.is_instance_of::<PyString>() {
        return Ok(GoldSource::Sql(text(argument)?));
    }
    if let Ok(outcome) = argument.cast::<Outcome>() {
        let table = outcome.get().table().ok_or_else(|| PyValueError::new_err("a gold outcome must be ok"))?;
        return Ok(GoldSource::Table(Arc::clone(table)));
    }
    match argument.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => {
            let columns = pair.get_item(0)?;
            if columns.is_instance_of::<PyString>() {
                return Err(PyTypeError::new_err("a gold tuple is (columns, rows); several golds are a list"));
            }
            let table: Table = table_from_python(&columns, &pair.get_item(1)?)?;
            Ok(GoldSource::Table(Arc::new(table)))
        }
        _ => Err(wrong_type("a gold must be SQL, (columns, rows), an Outcome, or a list of these", argument)),
    }
}

/// Says which of many items is wrong.
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
        "condition_cols" => options.condition_cols = value.extract()?,
        "ignore_order" => options.ignore_order = value.extract()?,
        "ordered" => options.ordered = value.extract()?,
        "row_slack" => options.row_slack = value.extract()?,
        "strip_distinct" => options.strip_distinct = value.extract()?,
        _ => {
            let known = "condition_cols, ignore_order, ordered, row_slack, strip_distinct";
            return Err(PyValueError::new_err(format!("no option is named {name:?}; the options are {known}")));
        }
    }
    Ok(())
}

fn wrong_type(wanted: &str, got: &Bound<'_, PyAny>) -> PyErr {
    let kind = got.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{wanted}, not {kind}"))
}
