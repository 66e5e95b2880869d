# Rows of Arrow columns, imported through Arrow's C data interface, without linking Arrow.

cdef enum Width:
    OFFSETS_32 = 4               # binary, string
    OFFSETS_64 = 8               # large binary, large string
    VIEWS_16 = 16                # views of 16 bytes: a short value, or the buffer and offset of a longer one

cdef struct BytesColumn:
    # a column of bytes or text
    const unsigned char* validity
    const unsigned char* offsets
    const unsigned char* data
    const void** buffers
    int64_t offset
    int width

cdef struct IntegerColumn:
    # a column of integers; a value is multiplied and divided to get the unit of the record
    const unsigned char* validity
    const unsigned char* data
    int64_t offset, multiplier, divisor
    int width

cdef dict TIMESTAMP_UNITS = {"s": (1000, 1), "m": (1, 1), "u": (1, 1000), "n": (1, 1000000)}


cdef inline bint is_valid(const unsigned char* validity, int64_t row) noexcept nogil:
    return validity == NULL or (validity[row >> 3] >> (row & 7)) & 1


cdef inline const unsigned char* bytes_at(BytesColumn* column, int64_t row, int64_t* size) noexcept nogil:
    """Return a value of a column; a size of -1 stands for null."""
    cdef int64_t at = row + column.offset, start
    cdef const unsigned char* view
    cdef int32_t length
    if not is_valid(column.validity, at):
        size[0] = -1
        return NULL
    if column.width == OFFSETS_32:
        start = (<const int32_t*>column.offsets)[at]
        size[0] = (<const int32_t*>column.offsets)[at + 1] - start
        return column.data + start
    if column.width == OFFSETS_64:
        start = (<const int64_t*>column.offsets)[at]
        size[0] = (<const int64_t*>column.offsets)[at + 1] - start
        return column.data + start
    view = column.offsets + VIEWS_16 * at
    memcpy(&length, view, 4)
    size[0] = length
    if length <= 12:
        return view + 4
    return <const unsigned char*>column.buffers[2 + (<const int32_t*>view)[2]] + (<const int32_t*>view)[3]


cdef inline int64_t number_at(IntegerColumn* column, int64_t row) noexcept nogil:
    cdef int64_t at = row + column.offset, value
    if column.width == 2:
        value = (<const int16_t*>column.data)[at]
    elif column.width == 4:
        value = (<const int32_t*>column.data)[at]
    else:
        value = (<const int64_t*>column.data)[at]
    return value * column.multiplier // column.divisor


@cython.final
cdef class ArrowRows:
    """One batch of Arrow columns; values are read in place."""

    cdef ArrowArray _array
    cdef ArrowSchema _schema
    cdef bint _has_array, _has_schema
    cdef readonly int64_t count
    cdef BytesColumn _values, _keys, _header_keys, _header_values
    cdef IntegerColumn _times, _partitions
    cdef bint _has_keys, _has_times, _has_partitions, _has_headers
    cdef const unsigned char* _headers_validity
    cdef const unsigned char* _header_offsets
    cdef int64_t _headers_offset, _header_offset
    cdef int _headers_width
    cdef bytearray _packed

    def __dealloc__(self):
        if self._has_array and self._array.release != NULL:
            self._array.release(&self._array)
        if self._has_schema and self._schema.release != NULL:
            self._schema.release(&self._schema)

    cdef int _find(self, dict names) except -1:
        """Find the columns by their names."""
        cdef list columns = [self._schema.children[i].name.decode() for i in range(self._schema.n_children)]
        self.count = self._array.length
        self._packed = bytearray(256)
        if names["value"] not in columns:
            raise ValueError(f"there is no column {names['value']!r}; there are {', '.join(map(repr, columns))}")
        for role, name in names.items():
            if name in columns:
                self._import_column(role, name, columns.index(name))
        return 0

    cdef int _import_column(self, str role, str name, int64_t at) except -1:
        cdef ArrowSchema* schema = self._schema.children[at]
        cdef ArrowArray* array = self._array.children[at]
        cdef int64_t offset = self._array.offset
        if role == "value":
            import_bytes_column(&self._values, schema, array, offset, name)
        elif role == "key":
            import_bytes_column(&self._keys, schema, array, offset, name)
            self._has_keys = True
        elif role == "timestamp":
            import_integer_column(&self._times, schema, array, offset, name, True)
            self._has_times = True
        elif role == "partition":
            import_integer_column(&self._partitions, schema, array, offset, name, False)
            self._has_partitions = True
        else:
            self._import_headers(schema, array, offset, name)
        return 0

    cdef int _import_headers(self, ArrowSchema* schema, ArrowArray* array, int64_t offset, str name) except -1:
        cdef str format = schema.format.decode()
        cdef ArrowSchema* item
        cdef ArrowArray* items
        if format not in ("+l", "+L", "+m") or schema.children[0].format.decode() != "+s" or (
            schema.children[0].n_children < 2
        ):
            raise TypeError(
                f"column {name!r} is of the Arrow format {format!r}: headers are a list of structs of key and value"
            )
        self._headers_width = OFFSETS_64 if format == "+L" else OFFSETS_32
        self._headers_validity = <const unsigned char*>array.buffers[0] if array.null_count else NULL
        self._header_offsets = <const unsigned char*>array.buffers[1]
        self._headers_offset = offset + array.offset
        item, items = schema.children[0], array.children[0]
        import_bytes_column(&self._header_keys, item.children[0], items.children[0], items.offset, "key of headers")
        import_bytes_column(&self._header_values, item.children[1], items.children[1], items.offset, "value of headers")
        self._has_headers = True
        return 0

    cdef int64_t _time_of(self, int64_t row, int64_t now) except -1:
        """Return the timestamp of a row, `now` where it is null."""
        cdef int64_t stamp
        if not is_valid(self._times.validity, row + self._times.offset):
            return now
        stamp = number_at(&self._times, row)
        if stamp < 0:
            raise ValueError(f"the timestamp of row {row} is before 1970: {stamp} ms; null stands for now")
        return stamp

    cdef Py_ssize_t _headers_of(self, int64_t row) except -1:
        """Encode the headers of a row; return their size in bytes, 0 for none."""
        cdef int64_t at = row + self._headers_offset, first, last, i, key_size = 0, value_size = 0
        cdef const unsigned char* key
        cdef const unsigned char* value
        cdef unsigned char* p
        cdef Py_ssize_t needed = 10
        if not self._has_headers or not is_valid(self._headers_validity, at):
            return 0
        if self._headers_width == OFFSETS_32:
            first, last = (<const int32_t*>self._header_offsets)[at], (<const int32_t*>self._header_offsets)[at + 1]
        else:
            first, last = (<const int64_t*>self._header_offsets)[at], (<const int64_t*>self._header_offsets)[at + 1]
        if first == last:
            return 0
        for i in range(first, last):
            bytes_at(&self._header_keys, i, &key_size)
            bytes_at(&self._header_values, i, &value_size)
            if key_size < 0:
                raise ValueError(f"a header of row {row} has no key")
            needed += 20 + key_size + max(value_size, <int64_t>0)
        if needed > len(self._packed):
            self._packed = bytearray(needed)
        p = put_varint(<unsigned char*>PyByteArray_AS_STRING(self._packed), last - first)
        for i in range(first, last):
            key = bytes_at(&self._header_keys, i, &key_size)
            value = bytes_at(&self._header_values, i, &value_size)
            p = put_varint(p, key_size)
            memcpy(p, key, key_size)
            p = put_varint(p + key_size, value_size)
            if value_size > 0:
                memcpy(p, value, value_size)
                p += value_size
        return p - <unsigned char*>PyByteArray_AS_STRING(self._packed)


cdef int import_bytes_column(
    BytesColumn* out, ArrowSchema* schema, ArrowArray* array, int64_t offset, str name
) except -1:
    cdef str format = schema.format.decode()
    if schema.dictionary != NULL or format not in ("z", "u", "Z", "U", "vz", "vu"):
        kind = f"dictionary of {format!r}" if schema.dictionary != NULL else repr(format)
        raise TypeError(
            f"column {name!r} is of the Arrow format {kind}: cast it to binary or string, as in "
            f"table.set_column(i, {name!r}, column.cast('binary'))"
        )
    out.width = VIEWS_16 if format[0] == "v" else OFFSETS_64 if format in ("Z", "U") else OFFSETS_32
    out.validity = <const unsigned char*>array.buffers[0] if array.null_count else NULL
    out.offsets = <const unsigned char*>array.buffers[1]
    out.data = <const unsigned char*>array.buffers[2] if out.width != VIEWS_16 else NULL
    out.buffers = array.buffers
    out.offset = offset + array.offset
    return 0


cdef int import_integer_column(
    IntegerColumn* out, ArrowSchema* schema, ArrowArray* array, int64_t offset, str name, bint is_timestamp
) except -1:
    cdef str format = schema.format.decode()
    out.multiplier = out.divisor = 1
    if is_timestamp and format.startswith("ts"):
        out.multiplier, out.divisor = TIMESTAMP_UNITS[format[2]]
        out.width = 8
    elif format in ("s", "i", "l") and schema.dictionary == NULL:
        out.width = {"s": 2, "i": 4, "l": 8}[format]
    else:
        wanted = "a timestamp, or int64 of milliseconds" if is_timestamp else "int32"
        raise TypeError(f"column {name!r} is of the Arrow format {format!r}: cast it to {wanted}")
    out.validity = <const unsigned char*>array.buffers[0] if array.null_count else NULL
    out.data = <const unsigned char*>array.buffers[1]
    out.offset = offset + array.offset
    return 0


def arrow_rows(data, dict names):
    """Import columns: yields ArrowRows for each batch of a table, a record batch, or a reader of batches.

    `names` gives the names that value, key, timestamp, partition and headers have; all but value may be
    missing. Raises TypeError for data that is not Arrow's, ValueError for a missing column.
    """
    if hasattr(data, "__arrow_c_array__"):
        yield _rows_of_array(data, names)
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _rows_of_stream(data.__arrow_c_stream__(), names)
    else:
        raise TypeError(
            f"{type(data).__name__} has no Arrow columns: give a table or record batch of pyarrow, a polars "
            "DataFrame, or anything with __arrow_c_stream__"
        )


cdef ArrowRows _rows_of_array(data, dict names):
    cdef ArrowRows rows = ArrowRows.__new__(ArrowRows)
    cdef ArrowSchema* schema
    cdef ArrowArray* array
    schema_capsule, array_capsule = data.__arrow_c_array__()
    schema = <ArrowSchema*>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    array = <ArrowArray*>PyCapsule_GetPointer(array_capsule, "arrow_array")
    # Move the structs out: a struct that is marked as released here is ours to release.
    rows._schema, rows._array = schema[0], array[0]
    schema.release, array.release = NULL, NULL
    rows._has_schema = rows._has_array = True
    if rows._schema.format.decode() != "+s":
        raise TypeError("one column is no table: give a record batch with a column named 'value'")
    rows._find(names)
    return rows


def _rows_of_stream(capsule, dict names):
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef ArrowRows rows
    while True:
        rows = ArrowRows.__new__(ArrowRows)
        if stream.get_next(stream, &rows._array) != 0:
            raise OSError(_stream_error(stream))
        if rows._array.release == NULL:
            return
        rows._has_array = True
        if stream.get_schema(stream, &rows._schema) != 0:
            raise OSError(_stream_error(stream))
        rows._has_schema = True
        rows._find(names)
        yield rows


cdef str _stream_error(ArrowArrayStream* stream):
    cdef const char* text = stream.get_last_error(stream)
    return "the Arrow stream failed" if text == NULL else text.decode("utf-8", "replace")
