//! Failures of the cache and of candle in one type that becomes candle's with `?`.

use std::fmt;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. Inside a model, where functions return [`candle_core::Result`], `?` converts it.
#[derive(Debug)]
pub enum Error {
    /// The library refused; the cache is as it was before.
    Cache(kvcache::Error),
    /// candle refused, or a tensor does not fit the step.
    Tensor(candle_core::Error),
}

impl Error {
    /// The library's error, to match on its status.
    pub fn cache(&self) -> Option<&kvcache::Error> {
        match self {
            Error::Cache(error) => Some(error),
            Error::Tensor(_) => None,
        }
    }

    /// The pool is full now: evict, remove or wait, and try again.
    pub fn is_no_pages(&self) -> bool {
        self.cache().is_some_and(kvcache::Error::is_no_pages)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Cache(error) => error.fmt(f),
            Error::Tensor(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Cache(error) => Some(error),
            Error::Tensor(error) => Some(error),
        }
    }
}

impl From<kvcache::Error> for Error {
    fn from(error: kvcache::Error) -> Self {
        Error::Cache(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Error::Tensor(error)
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Cache(error) => candle_core::Error::wrap(error),
            Error::Tensor(error) => error,
        }
    }
}

/// An error of ours about tensors.
pub(crate) fn refuse<T>(message: String) -> Result<T> {
    Err(Error::Tensor(candle_core::Error::Msg(message).bt()))
}
