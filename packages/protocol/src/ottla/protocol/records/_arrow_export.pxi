# Handing columns over through the C data interface. Every struct that is handed out keeps the columns alive,
# until its importer releases it, on any thread.

cdef struct SchemaParts:
    char* format
    char* name


cdef void release_schema(ArrowSchema* schema) noexcept:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    if schema.dictionary != NULL:
        if schema.dictionary.release != NULL:
            schema.dictionary.release(schema.dictionary)
        free(schema.dictionary)
    free(<void*>schema.format)
    free(<void*>schema.name)
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept with gil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    if array.dictionary != NULL:
        if array.dictionary.release != NULL:
            array.dictionary.release(array.dictionary)
        free(array.dictionary)
    free(array.buffers)
    if array.private_data != NULL:
        Py_DECREF(<object>array.private_data)
    array.release = NULL


cdef char* copied(bytes text) except NULL:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text) + 1
    cdef char* out = <char*>malloc(size)
    if out == NULL:
        raise MemoryError
    memcpy(out, PyBytes_AS_STRING(text), size)
    return out


cdef int fill_schema(ArrowSchema* out, bytes format, bytes name, int64_t flags, int64_t children) except -1:
    """Describe one node; its children are allocated and empty."""
    cdef int64_t i
    memset(out, 0, sizeof(ArrowSchema))
    out.release = release_schema
    out.flags = flags
    out.format = copied(format)
    out.name = copied(name)
    if children:
        out.children = <ArrowSchema**>calloc(children, sizeof(ArrowSchema*))
        if out.children == NULL:
            raise MemoryError
        for i in range(children):
            out.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
            if out.children[i] == NULL:
                raise MemoryError
            out.n_children = i + 1
    return 0


cdef int fill_array(
    ArrowArray* out, object owner, int64_t length, int64_t nulls, int64_t buffers, int64_t children
) except -1:
    """One node with so many buffers, which are NULL yet; its children are allocated and empty."""
    cdef int64_t i
    memset(out, 0, sizeof(ArrowArray))
    out.release = release_array
    out.length, out.null_count = length, nulls
    Py_INCREF(owner)
    out.private_data = <void*>owner
    out.buffers = <const void**>calloc(max(buffers, <int64_t>1), sizeof(void*))
    if out.buffers == NULL:
        raise MemoryError
    out.n_buffers = buffers
    if children:
        out.children = <ArrowArray**>calloc(children, sizeof(ArrowArray*))
        if out.children == NULL:
            raise MemoryError
        for i in range(children):
            out.children[i] = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            if out.children[i] == NULL:
                raise MemoryError
            out.n_children = i + 1
    return 0


cdef void free_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void free_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


@cython.final
cdef class TopicNames:
    """The dictionary of the topic column."""

    cdef Text text

    def __cinit__(self, list names):
        cdef bytes name
        if not text_room(&self.text, len(names), sum([len(name) for name in names])):
            raise MemoryError
        for name in names:
            put_text(&self.text, <const unsigned char*>PyBytes_AS_STRING(name), <int32_t>len(name))

    def __dealloc__(self):
        free_text(&self.text)


# Names and formats of the columns, in the order they have.
cdef tuple COLUMNS = (
    ("key", b"z"),
    ("value", b"z"),
    ("topic", b"i"),
    ("partition", b"i"),
    ("offset", b"l"),
    ("timestamp", b"tsm:UTC"),
    ("timestamp_type", b"i"),
    ("headers", b"+l"),
)


@cython.final
cdef class ArrowColumns:
    """Records as Arrow columns, for any library that imports objects with `__arrow_c_array__`.

    `pyarrow.record_batch(columns)` and `polars.DataFrame(columns)` take them without a copy.
    """

    cdef Columns _columns
    cdef list _topic_names
    cdef readonly frozenset names

    def __len__(self):
        return self._columns.count

    @property
    def nbytes(self):
        """Bytes of keys, values and headers."""
        cdef Columns columns = self._columns
        return (
            columns.keys.contents.size + columns.values.contents.size + columns.header_keys.contents.size
            + columns.header_values.contents.size
        )

    def __arrow_c_schema__(self):
        """The schema as a PyCapsule (Arrow's PyCapsule interface)."""
        cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError
        capsule = PyCapsule_New(schema, "arrow_schema", free_schema_capsule)
        self._describe(schema)
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        """Schema and columns as PyCapsules; a requested schema is ignored: the importer casts."""
        cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError
        capsule = PyCapsule_New(array, "arrow_array", free_array_capsule)
        self._hand_over(array)
        return self.__arrow_c_schema__(), capsule

    cdef list _chosen(self):
        return [column for column in COLUMNS if column[0] in self.names]

    cdef int _describe(self, ArrowSchema* out) except -1:
        cdef list chosen = self._chosen()
        cdef int64_t i
        fill_schema(out, b"+s", b"", 0, len(chosen))
        for i in range(len(chosen)):
            name, format = chosen[i]
            if name == "headers":
                self._describe_headers(out.children[i])
                continue
            fill_schema(out.children[i], format, name.encode(), ARROW_FLAG_NULLABLE if format == b"z" else 0, 0)
            if name == "topic":
                out.children[i].dictionary = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
                if out.children[i].dictionary == NULL:
                    raise MemoryError
                fill_schema(out.children[i].dictionary, b"u", b"", 0, 0)
        return 0

    cdef int _describe_headers(self, ArrowSchema* out) except -1:
        fill_schema(out, b"+l", b"headers", 0, 1)
        fill_schema(out.children[0], b"+s", b"item", 0, 2)
        fill_schema(out.children[0].children[0], b"u", b"key", 0, 0)
        fill_schema(out.children[0].children[1], b"z", b"value", ARROW_FLAG_NULLABLE, 0)
        return 0

    cdef int _hand_over(self, ArrowArray* out) except -1:
        cdef list chosen = self._chosen()
        cdef Columns columns = self._columns
        cdef int64_t i
        fill_array(out, columns, columns.count, 0, 1, len(chosen))
        for i in range(len(chosen)):
            name = chosen[i][0]
            if name == "key":
                self._text(out.children[i], &columns.keys, columns)
            elif name == "value":
                self._text(out.children[i], &columns.values, columns)
            elif name == "topic":
                self._plain(out.children[i], &columns.topics)
                self._topic_dictionary(out.children[i])
            elif name == "partition":
                self._plain(out.children[i], &columns.partitions)
            elif name == "offset":
                self._plain(out.children[i], &columns.offsets)
            elif name == "timestamp":
                self._plain(out.children[i], &columns.timestamps)
            elif name == "timestamp_type":
                self._plain(out.children[i], &columns.timestamp_types)
            else:
                self._headers(out.children[i])
        return 0

    cdef int _plain(self, ArrowArray* out, Buffer* buffer) except -1:
        fill_array(out, self._columns, self._columns.count, 0, 2, 0)
        out.buffers[1] = buffer.data
        return 0

    cdef int _text(self, ArrowArray* out, Text* text, object owner) except -1:
        fill_array(out, owner, text.count, text.nulls, 3, 0)
        out.buffers[0] = text.present.data if text.nulls else NULL
        out.buffers[1] = text.ends.data
        out.buffers[2] = text.contents.data
        return 0

    cdef int _topic_dictionary(self, ArrowArray* out) except -1:
        cdef TopicNames names = TopicNames(self._topic_names)
        out.dictionary = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if out.dictionary == NULL:
            raise MemoryError
        return self._text(out.dictionary, &names.text, names)

    cdef int _headers(self, ArrowArray* out) except -1:
        cdef Columns columns = self._columns
        fill_array(out, columns, columns.count, 0, 2, 1)
        out.buffers[1] = columns.header_ends.data
        fill_array(out.children[0], columns, columns.header_keys.count, 0, 1, 2)
        self._text(out.children[0].children[0], &columns.header_keys, columns)
        self._text(out.children[0].children[1], &columns.header_values, columns)
        return 0
