//! Reading scenarios: no key may be unknown or written twice.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

pub type Json = Value;

/// Reads what a scenario may leave out, and what it may not.
pub trait Fields {
    fn int(&self, key: &str, default: i64) -> i64;
    fn num(&self, key: &str, default: f64) -> f64;
    fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str;
    fn flag(&self, key: &str, default: bool) -> bool;
    fn need(&self, key: &str) -> &Json;
    fn list(&self, key: &str) -> &[Json];
    fn ints(&self, key: &str) -> Vec<i64>;
    fn nums(&self, key: &str) -> Vec<f64>;
    fn has(&self, key: &str) -> bool;

    fn seq(&self) -> i64 {
        self.need("seq").as_i64().expect("seq")
    }
    fn size(&self, key: &str, default: i64) -> usize {
        self.int(key, default) as usize
    }
    /// A layer of any number: one below zero becomes one that no model has.
    fn layer(&self) -> usize {
        self.need("layer").as_i64().expect("layer") as usize
    }
}

impl Fields for Json {
    fn int(&self, key: &str, default: i64) -> i64 {
        self.get(key).map_or(default, |x| x.as_i64().unwrap_or_else(|| panic!("{key}: {x}")))
    }
    fn num(&self, key: &str, default: f64) -> f64 {
        self.get(key).map_or(default, |x| x.as_f64().unwrap_or_else(|| panic!("{key}: {x}")))
    }
    fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.get(key).map_or(default, |x| x.as_str().unwrap_or_else(|| panic!("{key}: {x}")))
    }
    fn flag(&self, key: &str, default: bool) -> bool {
        self.get(key).map_or(default, |x| x.as_bool().unwrap_or_else(|| panic!("{key}: {x}")))
    }
    fn need(&self, key: &str) -> &Json {
        self.get(key).unwrap_or_else(|| panic!("'{key}' is missing in {self}"))
    }
    fn list(&self, key: &str) -> &[Json] {
        self.get(key).map_or(&[], |x| x.as_array().unwrap_or_else(|| panic!("{key}: {x}")))
    }
    fn ints(&self, key: &str) -> Vec<i64> {
        self.list(key).iter().map(|x| x.as_i64().unwrap_or_else(|| panic!("{key}: {x}"))).collect()
    }
    fn nums(&self, key: &str) -> Vec<f64> {
        self.list(key).iter().map(|x| x.as_f64().unwrap_or_else(|| panic!("{key}: {x}"))).collect()
    }
    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }
}

/// Numbers of a list, or of the rows of a list of lists; and the shape of either.
pub fn flatten(json: &[Json]) -> (Vec<usize>, Vec<f64>) {
    match json.first().and_then(Json::as_array) {
        None => (vec![json.len()], json.iter().map(|x| x.as_f64().expect("a number")).collect()),
        Some(row) => {
            let elements = json.iter().flat_map(|row| row.as_array().expect("a row"));
            (vec![json.len(), row.len()], elements.map(|x| x.as_f64().expect("a number")).collect())
        }
    }
}

/// JSON in which no object has a key twice.
struct Strict(Json);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

macro_rules! scalars {
    ($($name:ident: $type:ty,)*) => {$(
        fn $name<E>(self, x: $type) -> Result<Json, E> {
            Ok(x.into())
        }
    )*};
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    scalars! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(element)) = access.next_element()? {
            list.push(element);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(element))) = access.next_entry::<String, Strict>()? {
            if object.insert(key.clone(), element).is_some() {
                return Err(serde::de::Error::custom(format!("key '{key}' is written twice")));
            }
        }
        Ok(Json::Object(object))
    }
}

pub fn parse(text: &str) -> Json {
    serde_json::from_str::<Strict>(text).unwrap_or_else(|error| panic!("{error}")).0
}
