//! The structures of the Arrow C data and C stream interfaces: the one place in the crate with `unsafe`.
//!
//! The specification fixes their layout and who frees what. A structure is freed by calling its `release`; whoever takes
//! one over copies it and sets `release` of the original to null. Here each structure owns a boxed `private_data` that
//! its `release` drops, and the data itself is behind an `Arc`, so that the children of an array, which a consumer may
//! take one by one, keep it alive.
#![allow(unsafe_code, reason = "a C interface of raw pointers and callbacks; each use says why it is sound")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::columns::{Column, Data};

const FLAG_NULLABLE: i64 = 2;

/// A type, and the name of a field.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// Values: a length and buffers.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// A schema and a sequence of arrays; here always one.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

// SAFETY: the pointers lead to memory that the structure alone owns, or to data behind an `Arc` that nobody writes.
unsafe impl Send for ArrowSchema {}
// SAFETY: the same.
unsafe impl Send for ArrowArray {}
// SAFETY: the same.
unsafe impl Send for ArrowArrayStream {}

struct SchemaData {
    name: CString,
    children: Vec<*mut ArrowSchema>,
}

struct ArrayData {
    /// What `buffers` point into; never read through this field.
    _columns: Arc<Vec<Column>>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
}

struct StreamData {
    columns: Arc<Vec<Column>>,
    n_rows: usize,
    is_read: bool,
}

impl ArrowSchema {
    /// Makes the schema of a table: a struct with a field a column.
    pub fn of(columns: &[Column]) -> Self {
        let fields =
            columns.iter().map(|column| Self::new(format_of(&column.data), &column.name, FLAG_NULLABLE, vec![]));
        Self::new(c"+s", "", 0, fields.map(into_raw).collect())
    }

    fn new(format: &'static CStr, name: &str, flags: i64, children: Vec<*mut Self>) -> Self {
        let name = CString::new(name.replace('\0', "")).unwrap_or_default(); // SQLite's names hold no NUL
        let mut data = Box::new(SchemaData { name, children });
        Self {
            format: format.as_ptr(),
            name: data.name.as_ptr(),
            metadata: ptr::null(),
            flags,
            n_children: data.children.len() as i64,
            children: data.children.as_mut_ptr(), // stays: moving the box does not move the vector's memory
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: Box::into_raw(data).cast(),
        }
    }
}

impl ArrowArray {
    /// Makes the array of a table: a struct with a child a column.
    pub fn of(columns: &Arc<Vec<Column>>, n_rows: usize) -> Self {
        let child = |column: &Column| {
            let null_count = if matches!(column.data, Data::Null) { n_rows } else { column.n_null };
            into_raw(Self::new(columns, n_rows, null_count, buffers_of(column), vec![]))
        };
        Self::new(columns, n_rows, 0, vec![ptr::null()], columns.iter().map(child).collect())
    }

    fn new(
        columns: &Arc<Vec<Column>>,
        n_rows: usize,
        n_null: usize,
        buffers: Vec<*const c_void>,
        children: Vec<*mut Self>,
    ) -> Self {
        let mut data = Box::new(ArrayData { _columns: Arc::clone(columns), buffers, children });
        Self {
            length: n_rows as i64,
            null_count: n_null as i64,
            offset: 0,
            n_buffers: data.buffers.len() as i64,
            n_children: data.children.len() as i64,
            buffers: data.buffers.as_mut_ptr(),
            children: data.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: Box::into_raw(data).cast(),
        }
    }
}

impl ArrowArrayStream {
    /// Makes a stream of one array, the table's.
    pub fn of(columns: &Arc<Vec<Column>>, n_rows: usize) -> Self {
        let data = Box::new(StreamData { columns: Arc::clone(columns), n_rows, is_read: false });
        Self {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release_stream),
            private_data: Box::into_raw(data).cast(),
        }
    }
}

fn into_raw<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

fn format_of(data: &Data) -> &'static CStr {
    match data {
        Data::Null => c"n",
        Data::Int64(_) => c"l",
        Data::Float64(_) => c"g",
        Data::Utf8(_) => c"U",
        Data::Binary(_) => c"Z",
    }
}

fn buffers_of(column: &Column) -> Vec<*const c_void> {
    let validity = column.validity.as_ref().map_or(ptr::null(), |bits| bits.as_ptr().cast());
    match &column.data {
        Data::Null => vec![],
        Data::Int64(values) => vec![validity, values.as_ptr().cast()],
        Data::Float64(values) => vec![validity, values.as_ptr().cast()],
        Data::Utf8(bytes) | Data::Binary(bytes) => {
            vec![validity, bytes.offsets.as_ptr().cast(), bytes.values.as_ptr().cast()]
        }
    }
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the interface calls this once, with a schema that `ArrowSchema::new` filled (perhaps moved since), so its
    // private data came from `into_raw` of that type, and so did its children. Dropping a child releases it unless a
    // consumer took it over.
    unsafe {
        let data = Box::from_raw((*schema).private_data.cast::<SchemaData>());
        data.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: as in `release_schema`.
    unsafe {
        let data = Box::from_raw((*array).private_data.cast::<ArrayData>());
        data.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        (*array).release = None;
    }
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: as in `release_schema`.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<StreamData>()));
        (*stream).release = None;
    }
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the caller gives a stream that is not released, and memory for a schema that is not initialised yet,
    // which `write` fills without dropping what was there.
    unsafe {
        let data = &*(*stream).private_data.cast::<StreamData>();
        out.write(ArrowSchema::of(&data.columns));
    }
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: as in `get_schema`; calls on one stream do not overlap, so the private data is this call's alone.
    unsafe {
        let data = &mut *(*stream).private_data.cast::<StreamData>();
        if data.is_read {
            out.write_bytes(0, 1); // the end of a stream is an array that is released already
        } else {
            data.is_read = true;
            out.write(ArrowArray::of(&data.columns, data.n_rows));
        }
    }
    0
}

unsafe extern "C" fn get_last_error(_stream: *mut ArrowArrayStream) -> *const c_char {
    ptr::null() // nothing above fails
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it is not released yet, and nobody can reach it after this.
            unsafe { release(self) }
        }
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: as above.
            unsafe { release(self) }
        }
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: as above.
            unsafe { release(self) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;
    use crate::result::arrow::columns::columns;
    use crate::result::table::tests::table;
    use crate::result::value::Value;

    fn sample() -> Arc<Vec<Column>> {
        let rows: [&[Value<'_>]; 2] = [&[Value::Integer(5), Value::Text(b"ab")], &[Value::Null, Value::Text(b"")]];
        Arc::new(columns(&table(2, &rows)).unwrap())
    }

    #[test]
    fn a_consumer_reads_the_stream_and_keeps_a_child() {
        let columns = sample();
        let mut stream = ArrowArrayStream::of(&columns, 2);
        // SAFETY: the calls are those that the interface prescribes, in its order.
        let child = unsafe {
            let mut schema = MaybeUninit::<ArrowSchema>::uninit();
            assert_eq!(stream.get_schema.unwrap()(&raw mut stream, schema.as_mut_ptr()), 0);
            let schema = schema.assume_init();
            assert_eq!((CStr::from_ptr(schema.format), schema.n_children), (c"+s", 2));
            let field = &**schema.children.add(1);
            assert_eq!((CStr::from_ptr(field.format), CStr::from_ptr(field.name)), (c"U", c"c1"));

            let mut array = MaybeUninit::<ArrowArray>::uninit();
            assert_eq!(stream.get_next.unwrap()(&raw mut stream, array.as_mut_ptr()), 0);
            let array = array.assume_init();
            assert_eq!((array.length, array.null_count, array.n_buffers, array.n_children), (2, 0, 1, 2));
            let child = *array.children;
            let taken = ptr::read(child);
            (*child).release = None;

            let mut end = MaybeUninit::<ArrowArray>::uninit();
            assert_eq!(stream.get_next.unwrap()(&raw mut stream, end.as_mut_ptr()), 0);
            assert!(end.assume_init().release.is_none());
            taken
        };
        drop(stream);
        assert_eq!(Arc::strong_count(&columns), 2, "the child that was taken keeps the columns, and nothing else does");
        // SAFETY: the child is an int64 column of two rows whose data the child keeps alive.
        unsafe {
            assert_eq!((child.null_count, *(*child.buffers).cast::<u8>()), (1, 0b01));
            assert_eq!(*(*child.buffers.add(1)).cast::<i64>(), 5);
        }
        drop(child);
        assert_eq!(Arc::strong_count(&columns), 1);
    }

    #[test]
    fn what_nobody_takes_is_freed() {
        let columns = sample();
        drop((ArrowSchema::of(&columns), ArrowArray::of(&columns, 2), ArrowArrayStream::of(&columns, 2)));
        assert_eq!(Arc::strong_count(&columns), 1);
    }
}
