"""XXH3_64bits (xxHash 0.8, Collet), seed 0 and the default secret, of more than 8 bytes."""

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
MASK = (1 << 64) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def read(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def avalanche(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def fold(a, b):
    product = a * b
    return (product ^ product >> 64) & MASK


def mix_16(data, at, secret):
    low, high = read(data, at), read(data, at + 8)
    return fold(low ^ read(SECRET, secret), high ^ read(SECRET, secret + 8))


def of_9_to_16(data):
    n = len(data)
    low = read(data, 0) ^ read(SECRET, 24) ^ read(SECRET, 32)
    high = read(data, n - 8) ^ read(SECRET, 40) ^ read(SECRET, 48)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return avalanche(n + swapped + high + fold(low, high) & MASK)


def of_17_to_128(data):
    n = len(data)
    h = n * P64_1
    for i in range((n - 1) // 32 + 1):
        h += mix_16(data, 16 * i, 32 * i) + mix_16(data, n - 16 * (i + 1), 32 * i + 16)
    return avalanche(h & MASK)


def of_129_to_240(data):
    n = len(data)
    h = n * P64_1 + sum(mix_16(data, 16 * i, 16 * i) for i in range(8))
    h = avalanche(h & MASK)
    h += sum(mix_16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
    return avalanche(h + mix_16(data, n - 16, 136 - 17) & MASK)


def accumulate(lanes, data, at, secret):
    for i in range(8):
        value = read(data, at + 8 * i)
        key = value ^ read(SECRET, secret + 8 * i)
        lanes[i ^ 1] = lanes[i ^ 1] + value & MASK
        lanes[i] = lanes[i] + (key & 0xFFFFFFFF) * (key >> 32) & MASK


def of_many(data):
    n, stripes, end = len(data), (192 - 64) // 8, 192 - 64
    lanes = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    for stripe in range((n - 1) // 64):
        if stripe and stripe % stripes == 0:
            scramble(lanes, end)
        accumulate(lanes, data, 64 * stripe, 8 * (stripe % stripes))
    if (n - 1) // 64 % stripes == 0:
        scramble(lanes, end)
    accumulate(lanes, data, n - 64, end - 7)
    h = n * P64_1
    keyed = [lane ^ read(SECRET, 11 + 8 * i) for i, lane in enumerate(lanes)]
    h += sum(fold(keyed[2 * i], keyed[2 * i + 1]) for i in range(4))
    return avalanche(h & MASK)


def scramble(lanes, secret):
    for i in range(8):
        lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ read(SECRET, secret + 8 * i)) * P32_1 & MASK


def xxh3(data):
    n = len(data)
    assert n > 8
    return (of_9_to_16 if n <= 16 else of_17_to_128 if n <= 128 else
            of_129_to_240 if n <= 240 else of_many)(data)
