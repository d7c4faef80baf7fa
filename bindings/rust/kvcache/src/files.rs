//! State files: whole sequences to a file, a writer or memory, and back.

use crate::element::Stream;
use crate::error::{check, Error, Result, Status};
use crate::library::{api, loaded};
use crate::plan::text;
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::ffi::{c_void, CString};
use std::io;
use std::path::Path;
use std::ptr::{null, null_mut};

/// How [`CacheRef::load`] and its like read a state file.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The name that the file was saved with; `None`: any.
    pub model_id: Option<String>,
    /// Rows and states of other float types are converted.
    pub convert: bool,
    /// The prefix index gets nothing of the sequences, and shares no page with them: for files of other
    /// weights.
    pub no_publish: bool,
    /// Where the copies are enqueued.
    pub stream: Stream,
}

pub(crate) fn c_text(what: &str, text: &[u8]) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::new(Status::InvalidArgument, format!("{what} has a byte of value 0")))
}

pub(crate) fn path_text(path: &Path) -> Result<CString> {
    c_text("the path", path.as_os_str().as_encoded_bytes())
}

pub(crate) fn optional(text: &Option<CString>) -> *const std::ffi::c_char {
    text.as_ref().map_or(null(), |text| text.as_ptr())
}

pub(crate) fn model_text(model_id: Option<&str>) -> Result<Option<CString>> {
    model_id.map(|id| c_text("model_id", id.as_bytes())).transpose()
}

/// A writer, and what it failed with.
struct Sink<W> {
    writer: W,
    failure: Option<io::Error>,
}

unsafe extern "C" fn write_to<W: io::Write>(user: *mut c_void, data: *const c_void, size: usize) -> i32 {
    // SAFETY: the Sink that the call was given, and `size` bytes.
    let (sink, bytes) =
        unsafe { (&mut *user.cast::<Sink<W>>(), std::slice::from_raw_parts(data.cast::<u8>(), size)) };
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sink.writer.write_all(bytes)))
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
    match written {
        Ok(()) => 0,
        Err(error) => {
            const EIO: i32 = 5;
            let code = error.raw_os_error().unwrap_or(EIO);
            sink.failure = Some(error);
            code
        }
    }
}

impl CacheRef {
    /// Saves sequences as a state file, which appears whole or not at all. What they share is in it once.
    /// `model_id` names the model and its weights. Returns the size of the file.
    pub fn save_file(&self, path: impl AsRef<Path>, seqs: &[SeqId], model_id: Option<&str>) -> Result<u64> {
        let path = path_text(path.as_ref())?;
        let mut desc = sys::kvc_save_desc { path: path.as_ptr(), ..save_desc() };
        self.save_as(&mut desc, seqs, model_id, Stream::LEGACY)
    }

    /// The bytes of a state file.
    pub fn save(&self, seqs: &[SeqId], model_id: Option<&str>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.save_to(&mut bytes, seqs, model_id)?;
        Ok(bytes)
    }

    /// Writes a state file to `writer`, in pieces of about a mebibyte.
    pub fn save_to(&self, writer: impl io::Write, seqs: &[SeqId], model_id: Option<&str>) -> Result<u64> {
        fn desc_of<W: io::Write>(sink: &mut Sink<W>) -> sys::kvc_save_desc {
            sys::kvc_save_desc {
                write: Some(write_to::<W>),
                user: (sink as *mut Sink<W>).cast(),
                ..save_desc()
            }
        }
        let mut sink = Sink { writer, failure: None };
        let mut desc = desc_of(&mut sink);
        let saved = self.save_as(&mut desc, seqs, model_id, Stream::LEGACY);
        match (saved, sink.failure) {
            (Err(error), Some(failure)) => Err(Error::new(error.status(), format!("{error}: {failure}"))),
            (saved, _) => saved,
        }
    }

    fn save_as(
        &self,
        desc: &mut sys::kvc_save_desc,
        seqs: &[SeqId],
        model_id: Option<&str>,
        stream: Stream,
    ) -> Result<u64> {
        let model_id = model_text(model_id)?;
        desc.model_id = optional(&model_id);
        let mut bytes = 0;
        // SAFETY: shared; an array with its length; texts that live as long as the call.
        check(|error| unsafe {
            (loaded().seq_save)(
                self.as_ptr(),
                seqs.len(),
                seqs.as_ptr(),
                desc,
                stream.raw(),
                &mut bytes,
                error,
            )
        })?;
        Ok(bytes)
    }

    /// Adds the sequences of a state file under new ids; none of their tokens has to be computed again.
    pub fn load_file(&mut self, path: impl AsRef<Path>, seqs: &[SeqId], options: &LoadOptions) -> Result<()> {
        let path = path_text(path.as_ref())?;
        self.load_from(sys::kvc_load_desc { path: path.as_ptr(), ..load_desc() }, seqs, options)
    }

    /// The same, from the bytes of a file.
    pub fn load(&mut self, bytes: &[u8], seqs: &[SeqId], options: &LoadOptions) -> Result<()> {
        self.load_from(bytes_desc(bytes), seqs, options)
    }

    fn load_from(
        &mut self,
        mut desc: sys::kvc_load_desc,
        seqs: &[SeqId],
        options: &LoadOptions,
    ) -> Result<()> {
        let model_id = model_text(options.model_id.as_deref())?;
        desc.model_id = optional(&model_id);
        if options.convert {
            desc.flags |= sys::KVC_LOAD_CONVERT;
        }
        if options.no_publish {
            desc.flags |= sys::KVC_LOAD_NO_PUBLISH;
        }
        // SAFETY: exclusive; an array with its length; memory and texts that live as long as the call.
        check(|error| unsafe {
            (loaded().seq_load)(
                self.as_mut_ptr(),
                &desc,
                seqs.len(),
                seqs.as_ptr(),
                options.stream.raw(),
                error,
            )
        })
    }
}

fn save_desc() -> sys::kvc_save_desc {
    sys::kvc_save_desc {
        struct_size: size_of::<sys::kvc_save_desc>(),
        flags: 0,
        path: null(),
        data: null_mut(),
        size: 0,
        write: None,
        user: null_mut(),
        model_id: null(),
        ext: null(),
    }
}

fn load_desc() -> sys::kvc_load_desc {
    sys::kvc_load_desc {
        struct_size: size_of::<sys::kvc_load_desc>(),
        flags: 0,
        path: null(),
        data: null(),
        size: 0,
        read: None,
        user: null_mut(),
        model_id: null(),
        ext: null(),
    }
}

fn bytes_desc(bytes: &[u8]) -> sys::kvc_load_desc {
    sys::kvc_load_desc { data: bytes.as_ptr().cast(), size: bytes.len(), ..load_desc() }
}

fn describe(desc: &sys::kvc_load_desc) -> Result<String> {
    let api = api()?;
    // SAFETY: a buffer and its length; what the desc names lives as long as the call.
    text(|buffer, len, error| unsafe { (api.state_file_describe)(desc, buffer, len, error) })
}

/// Reads and checks a whole state file, and says what it holds, as JSON.
pub fn describe_state_file(path: impl AsRef<Path>) -> Result<String> {
    let path = path_text(path.as_ref())?;
    describe(&sys::kvc_load_desc { path: path.as_ptr(), ..load_desc() })
}

/// The same, for the bytes of a file.
pub fn describe_state_bytes(bytes: &[u8]) -> Result<String> {
    describe(&bytes_desc(bytes))
}
