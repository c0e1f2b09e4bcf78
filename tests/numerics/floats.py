"""float32 and float64 in Python's integers: IEEE 754, to nearest, ties to even (section 1).

A Float is a format and its bits. Results are computed exactly, as an integer times a power of 2,
and rounded once. Every NaN is the format's default one: no rule looks at the bits of another.
"""
from math import isqrt


class Format:
    def __init__(self, precision, exponent_bits):
        self.precision = precision
        self.width = precision + exponent_bits
        self.infinity = ((1 << exponent_bits) - 1) << (precision - 1)
        self.nan = self.infinity + (1 << (precision - 2))
        self.sign = 1 << (self.width - 1)
        self.least = 3 - (1 << (exponent_bits - 1)) - precision  # exponent of the smallest number

    def rounded(self, n, exponent, negative_zero=False):
        """n * 2^exponent as bits, for an integer n."""
        sign = self.sign if n < 0 or (n == 0 and negative_zero) else 0
        if n == 0:
            return sign
        n = abs(n)
        unit = max(exponent + n.bit_length() - self.precision, self.least)
        if unit <= exponent:
            n <<= exponent - unit
        else:
            shift = unit - exponent
            rest = n & ((1 << shift) - 1)
            half = 1 << (shift - 1)
            n >>= shift
            n += rest > half or (rest == half and n & 1)
        # A number without its highest bit is subnormal; a carry goes to the exponent by itself.
        bits = n + ((unit - self.least) << (self.precision - 1))
        return sign | min(bits, self.infinity)


F32 = Format(24, 8)
F64 = Format(53, 11)


class Float:
    __slots__ = ("format", "bits")

    def __init__(self, format, bits):
        self.format = format
        self.bits = bits

    def __repr__(self):
        return "%0*x" % (self.format.width // 4, self.bits)

    # ---- kinds --------------------------------------------------------------------------------

    def magnitude(self):
        return self.bits & (self.format.sign - 1)

    def is_negative(self):
        return self.bits >= self.format.sign

    def is_nan(self):
        return self.magnitude() > self.format.infinity

    def is_infinite(self):
        return self.magnitude() == self.format.infinity

    def is_finite(self):
        return self.magnitude() < self.format.infinity

    def exact(self):
        """(n, exponent): the finite number as an integer times a power of 2."""
        f = self.format
        m = self.bits & (f.sign - 1)
        field = m >> (f.precision - 1)
        if field:
            m = (m & ((1 << (f.precision - 1)) - 1)) | (1 << (f.precision - 1))
            field -= 1
        return (-m if self.bits >= f.sign else m), f.least + field

    # ---- arithmetic ---------------------------------------------------------------------------

    def of(self, bits):
        return Float(self.format, bits)

    def __neg__(self):
        return self.of(self.bits ^ self.format.sign)

    def __abs__(self):
        return self.of(self.magnitude())

    def __add__(self, other):
        f = self.format
        if not (self.is_finite() and other.is_finite()):
            if self.is_nan() or other.is_nan() or (
                    not self.is_finite() and not other.is_finite() and self.bits != other.bits):
                return self.of(f.nan)
            return other if self.is_finite() else self
        (a, i), (b, j) = self.exact(), other.exact()
        both = self.is_negative() and other.is_negative()
        low = min(i, j)
        return self.of(f.rounded((a << (i - low)) + (b << (j - low)), low, both))

    def __sub__(self, other):
        return self + -other

    def __mul__(self, other):
        f = self.format
        negative = self.is_negative() != other.is_negative()
        if not (self.is_finite() and other.is_finite()):
            if self.is_nan() or other.is_nan() or not (self.magnitude() and other.magnitude()):
                return self.of(f.nan)
            return self.of(f.infinity | (f.sign if negative else 0))
        (a, i), (b, j) = self.exact(), other.exact()
        return self.of(f.rounded(a * b, i + j, negative))

    def __truediv__(self, other):
        f = self.format
        negative = self.is_negative() != other.is_negative()
        sign = f.sign if negative else 0
        if self.is_nan() or other.is_nan() or (self.is_infinite() and other.is_infinite()):
            return self.of(f.nan)
        if self.is_infinite():
            return self.of(f.infinity | sign)
        if other.is_infinite():
            return self.of(sign)
        (a, i), (b, j) = self.exact(), other.exact()
        if b == 0:
            return self.of(f.infinity | sign if a else f.nan)
        # Enough digits of the quotient, and one more that says whether anything is left.
        more = f.precision + 3 + max(0, b.bit_length() - a.bit_length())
        q, rest = divmod(abs(a) << more, abs(b))
        q = q << 1 | (rest != 0)
        return self.of(f.rounded(-q if negative else q, i - j - more - 1, negative))

    def sqrt(self):
        """Of a number that is not negative."""
        n, e = self.exact()
        more = 2 * self.format.precision + 4
        more += (e - more) % 2
        root = isqrt(n << more)
        return self.of(self.format.rounded(root << 1 | (root * root != n << more),
                                           (e - more) // 2 - 1))

    # ---- comparisons: false with a NaN --------------------------------------------------------

    def key(self):
        return -self.magnitude() if self.is_negative() else self.magnitude()

    def __lt__(self, other):
        return not self.is_nan() and not other.is_nan() and self.key() < other.key()

    def __gt__(self, other):
        return other < self

    # ---- conversions --------------------------------------------------------------------------

    def to(self, format):
        if self.is_finite():
            return Float(format, format.rounded(*self.exact(), self.is_negative()))
        sign = format.sign if self.is_negative() else 0
        return Float(format, format.nan if self.is_nan() else format.infinity | sign)


def fma(a, b, c):
    f = a.format
    if not (a.is_finite() and b.is_finite()):
        return a * b + c
    if not c.is_finite():
        return c + c
    (x, i), (y, j), (z, k) = a.exact(), b.exact(), c.exact()
    low = min(i + j, k)
    both = a.is_negative() != b.is_negative() and c.is_negative()
    return Float(f, f.rounded((x * y << (i + j - low)) + (z << (k - low)), low, both))


def f32(bits):
    return Float(F32, bits)


def f64(bits):
    return Float(F64, bits)


def number(format, n, exponent=0):
    """n * 2^exponent, rounded to the format."""
    return Float(format, format.rounded(n, exponent))


def power_of_2(format, exponent):
    return number(format, 1, exponent)


def rint(n, exponent):
    """n * 2^exponent as the nearest integer, ties to even."""
    if exponent >= 0:
        return n << exponent
    half = 1 << (-exponent - 1)
    floor = n >> -exponent
    rest = n - (floor << -exponent)
    return floor + (rest > half or (rest == half and floor & 1))
