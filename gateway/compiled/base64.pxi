# Base64 of rows: protocols/openai/http/embeddings.py.

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <tmmintrin.h>
    #define HAS_BASE64_TWELVES() __builtin_cpu_supports("ssse3")
    /* Twelve bytes become sixteen characters at once, by Wojciech Mula's method. */
    __attribute__((target("ssse3"))) static Py_ssize_t
    base64_twelves(char *out, const unsigned char *at, Py_ssize_t size) {
        const __m128i order = _mm_setr_epi8(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
        const __m128i offsets = _mm_setr_epi8(
            'a' - 26, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
            '0' - 52, '0' - 52, '0' - 52, '+' - 62, '/' - 63, 'A', 0, 0);
        Py_ssize_t done = 0;
        for (; size - done >= 16; done += 12, out += 16) {
            __m128i bits = _mm_loadu_si128((const __m128i *)(at + done));
            bits = _mm_shuffle_epi8(bits, order);
            const __m128i odd = _mm_mulhi_epu16(
                _mm_and_si128(bits, _mm_set1_epi32(0x0FC0FC00)), _mm_set1_epi32(0x04000040));
            const __m128i even = _mm_mullo_epi16(
                _mm_and_si128(bits, _mm_set1_epi32(0x003F03F0)), _mm_set1_epi32(0x01000010));
            const __m128i sixes = _mm_or_si128(odd, even);
            __m128i range = _mm_subs_epu8(sixes, _mm_set1_epi8(51));
            const __m128i upper = _mm_cmpgt_epi8(_mm_set1_epi8(26), sixes);
            range = _mm_or_si128(range, _mm_and_si128(upper, _mm_set1_epi8(13)));
            range = _mm_shuffle_epi8(offsets, range);
            _mm_storeu_si128((__m128i *)out, _mm_add_epi8(range, sixes));
        }
        return done;
    }
    #else
    #define HAS_BASE64_TWELVES() 0
    static Py_ssize_t base64_twelves(char *out, const unsigned char *at, Py_ssize_t size) {
        return 0;
    }
    #endif
    """
    bint HAS_BASE64_TWELVES() noexcept
    Py_ssize_t base64_twelves(char* out, const unsigned char* at, Py_ssize_t size) noexcept

cdef bint _HAS_TWELVES = HAS_BASE64_TWELVES()
cdef const char* _ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef uint16_t _PAIRS[4096]  # two characters for twelve bits
for _each in range(4096):
    (<char*>&_PAIRS[_each])[0] = _ALPHABET[_each >> 6]
    (<char*>&_PAIRS[_each])[1] = _ALPHABET[_each & 63]

cdef const char* _ENTRY_START = b'{"object":"embedding","index":'
cdef const char* _ENTRY_TEXT = b',"embedding":"'

cdef enum:
    _START = 30
    _TEXT = 14
    _ENTRY = 30 + 14 + 3  # of an entry with its comma, without its index and its base64


cdef char* _put_base64(char* out, Text at, Py_ssize_t size) noexcept:
    """Write *size* bytes as base64, with padding."""
    cdef uint64_t bits, text
    cdef Py_ssize_t done = base64_twelves(out, at, size) if _HAS_TWELVES else 0
    cdef Py_ssize_t left = size - done
    at += done
    out += done // 3 * 4
    while left >= 8:  # of which six are used
        memcpy(&bits, at, 8)
        bits = _byte_swapped(bits)
        text = <uint64_t>_PAIRS[bits >> 52]
        text |= <uint64_t>_PAIRS[(bits >> 40) & 4095] << 16
        text |= <uint64_t>_PAIRS[(bits >> 28) & 4095] << 32
        text |= <uint64_t>_PAIRS[(bits >> 16) & 4095] << 48
        memcpy(out, &text, 8)
        out += 8
        at += 6
        left -= 6
    while left > 0:
        bits = <uint64_t>at[0] << 16
        if left > 1:
            bits |= <uint64_t>at[1] << 8
        if left > 2:
            bits |= at[2]
        memcpy(out, &_PAIRS[bits >> 12], 2)
        memcpy(out + 2, &_PAIRS[bits & 4095], 2)
        if left < 3:
            out[3] = c'='
        if left < 2:
            out[2] = c'='
        out += 4
        at += 3
        left -= 3
    return out


cdef inline char* _put_index(char* out, Py_ssize_t index) noexcept:
    """Write a number that is not negative."""
    cdef char digits[20]
    cdef int at = 20
    while True:
        at -= 1
        digits[at] = c'0' + <char>(index % 10)
        index //= 10
        if index == 0:
            break
    return _put_text(out, &digits[at], 20 - at)


cdef inline uint64_t _byte_swapped(uint64_t bits) noexcept:
    bits = (bits >> 32) | (bits << 32)
    bits = ((bits >> 16) & 0x0000FFFF0000FFFFULL) | ((bits & 0x0000FFFF0000FFFFULL) << 16)
    return ((bits >> 8) & 0x00FF00FF00FF00FFULL) | ((bits & 0x00FF00FF00FF00FFULL) << 8)


def base64_entries(rows, Py_ssize_t count):
    """See the version in Python."""
    cdef Py_buffer raw
    cdef Py_ssize_t width, size, index
    cdef Py_ssize_t digits = count
    cdef Py_ssize_t longer = 10  # the first index with one more digit
    cdef char* out
    cdef Text at
    if count < 1:
        return b""
    PyObject_GetBuffer(rows, &raw, PyBUF_SIMPLE)
    try:
        width = raw.len // count
        size = (width + 2) // 3 * 4
        while longer < count:
            digits += count - longer
            longer *= 10
        written = PyBytes_FromStringAndSize(NULL, count * (size + _ENTRY) + digits - 1)
        out = PyBytes_AS_STRING(written)
        at = <Text>raw.buf
        for index in range(count):
            if index:
                out[0] = c','
                out += 1
            out = _put_text(out, _ENTRY_START, _START)
            out = _put_index(out, index)
            out = _put_text(out, _ENTRY_TEXT, _TEXT)
            out = _put_base64(out, at, width)
            out = _put_text(out, b'"}', 2)
            at += width
    finally:
        PyBuffer_Release(&raw)
    return written
