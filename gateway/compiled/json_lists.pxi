# Lists of numbers in long texts of JSON: wire/rows/regular_lists.py.

cdef extern from *:
    """
    #if defined(__SSE2__) && defined(__GNUC__)
    #include <emmintrin.h>
    #endif
    /* Return the next bracket, brace or quote, and count the commas before it. */
    static const unsigned char *
    next_mark(const unsigned char *at, const unsigned char *end, Py_ssize_t *commas) {
    #if defined(__SSE2__) && defined(__GNUC__)
        const __m128i fold = _mm_set1_epi8(0x20);  /* the brackets become braces */
        const __m128i open = _mm_set1_epi8('{'), close = _mm_set1_epi8('}');
        const __m128i quote = _mm_set1_epi8('"'), comma = _mm_set1_epi8(',');
        while (end - at >= 16) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
            const __m128i folded = _mm_or_si128(bytes, fold);
            const __m128i braces =
                _mm_or_si128(_mm_cmpeq_epi8(folded, open), _mm_cmpeq_epi8(folded, close));
            unsigned marks =
                _mm_movemask_epi8(_mm_or_si128(braces, _mm_cmpeq_epi8(bytes, quote)));
            unsigned found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, comma));
            if (marks) {
                int first = __builtin_ctz(marks);
                *commas += __builtin_popcount(found & ((1u << first) - 1));
                return at + first;
            }
            *commas += __builtin_popcount(found);
            at += 16;
        }
    #endif
        for (; at < end; at++) {
            if (*at == ',')
                ++*commas;
            else if ((*at | 0x20) == '{' || (*at | 0x20) == '}' || *at == '"')
                return at;
        }
        return end;
    }
    """
    Text next_mark(Text at, Text end, Py_ssize_t* commas) noexcept

cdef enum:
    _DEEPEST = 32


def has_regular_lists(text):
    """See `gateway.wire.rows.regular_lists.has_regular_lists`."""
    cdef Py_buffer raw
    PyObject_GetBuffer(text, &raw, PyBUF_SIMPLE)
    try:
        return _has_regular_lists(<Text>raw.buf, <Text>raw.buf + raw.len)
    finally:
        PyBuffer_Release(&raw)


cdef bint _has_regular_lists(Text at, Text end) noexcept:
    cdef Py_ssize_t lengths[_DEEPEST + 1]  # of the first list of each depth, or -1
    cdef Py_ssize_t found[_DEEPEST + 1]  # lists in the list that is open
    cdef Py_ssize_t commas = 0
    cdef int depth = 0
    cdef int leaf = 0
    cdef int index
    cdef unsigned char last = 0
    cdef unsigned char mark
    cdef Text before = at
    while True:
        commas = 0
        at = next_mark(at, end, &commas)
        if at == end:
            return True
        mark = at[0]
        if mark == c'[':
            if depth:
                if commas != (last == c']'):
                    return False
                found[depth] += 1
            else:
                for index in range(_DEEPEST + 1):
                    lengths[index] = -1
                leaf = 0
            depth += 1
            if depth > _DEEPEST:
                return False
            found[depth] = 0
        elif mark == c']':
            if depth:
                if last == c'[':
                    if not (commas or _has_digit(before, at)) or (leaf and leaf != depth):
                        return False
                    leaf = depth
                    commas += 1
                elif commas:
                    return False
                else:
                    commas = found[depth]
                if lengths[depth] < 0:
                    lengths[depth] = commas
                elif lengths[depth] != commas:
                    return False
                depth -= 1
                if depth and last == c'[':
                    # Most lists are followed by another one of the same length.
                    at = _same_lists(at, end, lengths[leaf] - 1, &found[depth])
        else:
            depth = 0
            if mark == c'"':
                at = _string_end(at + 1, end)
                if at is NULL:
                    return False
        last = mark
        before = at
        at += 1


cdef inline Text _same_lists(Text at, Text end, Py_ssize_t commas, Py_ssize_t* count) noexcept:
    """Return the end of the last of some lists that have *commas*, and add their number to *count*.

    What follows the bracket at *at* is read here as long as it is a comma and such a list.
    """
    cdef Text start
    cdef Text stop
    cdef Py_ssize_t found
    while True:
        start = at + 1
        if end - start < 4 or start[0] != c',':
            return at
        start += 1 + (start[1] == c' ')
        # A list with a comma has a number; one without may be empty.
        if start[0] != c'[' or not commas:
            return at
        found = 0
        stop = next_mark(start + 1, end, &found)
        if stop == end or stop[0] != c']' or found != commas:
            return at
        count[0] += 1
        at = stop


cdef inline bint _has_digit(Text at, Text end) noexcept:
    """Return whether there is a digit between two brackets, nearly always at once."""
    while at < end:
        if c'0' <= at[0] <= c'9':
            return True
        at += 1
    return False


cdef Text _string_end(Text at, Text end) noexcept:
    """Return the quote that ends a string; NULL for none."""
    cdef Text start = at
    cdef Text back
    while True:
        at = <Text>memchr(at, c'"', end - at)
        if at is NULL:
            return NULL
        back = at
        while back > start and back[-1] == c'\\':
            back -= 1
        if not (at - back) & 1:
            return at
        at += 1
