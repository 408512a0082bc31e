// What the device does to a batch after the copy: photos from bytes to normalised planes, boxes of decoded photos to photos of one size,
// lists padded to one length, and casts between element types.
//
// scripts/kernels.py makes kernels.ptx from this file. It is written in the part of the language that C has too: the fake driver of
// the tests (tests/fake_cuda) includes it, and so every index and every formula runs without a GPU; what a compiler for GPUs makes of
// it does not. Every result is bit-equal to that of `Conversion::on_host`, or `View::resample`.
//
// Nothing here shares memory between threads or waits: a thread reads and writes its own elements, over a grid of any size.

#ifndef BOWSTRING_HOST
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define INLINE static __device__ __forceinline__
// This thread and the number of threads, in x; and the block and the number of blocks in y.
#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS ((u64)gridDim.x * blockDim.x)
#define ROW ((u64)blockIdx.y)
#define ROWS ((u64)gridDim.y)
// One rounding for product and sum, as `f32::mul_add`.
#define FMA(x, scale, bias) __fmaf_rn(x, scale, bias)
#define FLOAT_BITS(x) __float_as_uint(x)
#define BITS_FLOAT(x) __uint_as_float(x)
#define DOUBLE_BITS(x) ((u64)__double_as_longlong(x))
#define BITS_DOUBLE(x) __longlong_as_double((s64)(x))
#define HALF_BITS(bits, x) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x))
#define HALF_FLOAT(x, bits) asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits))
// Words that one thread stores at once.
#define STORE2(to, a, b) (*(uint2 *)(to) = make_uint2(a, b))
#define STORE4(to, a, b, c, d) (*(uint4 *)(to) = make_uint4(a, b, c, d))
#define UNROLL _Pragma("unroll")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

// Element types, numbered as in `DType::ALL`.
enum {
    BOOL, UINT8, INT8, UINT16, INT16, UINT32, INT32, UINT64, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64,
};

// ---- to and from the small floats, with NaN as the host makes it: the sign and the upper bits stay, and it is quiet -------------

INLINE int is_nan(u32 bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

INLINE u16 to_f16(float x) {
    u32 bits = FLOAT_BITS(x);
    u16 half;
    if (is_nan(bits))
        return (u16)((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    HALF_BITS(half, x);
    return half;
}

INLINE u16 to_bf16(float x) {
    u32 bits = FLOAT_BITS(x);
    if (is_nan(bits))
        return (u16)(bits >> 16 | 0x40u);
    // To nearest, ties to even: half a unit less one, and one more where the last bit that stays is odd.
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

INLINE float from_f16(u16 half) {
    float x;
    if ((half & 0x7fffu) > 0x7c00u)
        return BITS_FLOAT(((u32)half & 0x8000u) << 16 | 0x7fc00000u | ((u32)half & 0x3ffu) << 13);
    HALF_FLOAT(x, half);
    return x;
}

INLINE float from_bf16(u16 half) {
    u32 bits = (u32)half << 16;
    return BITS_FLOAT(is_nan(bits) ? bits | 0x400000u : bits);
}

INLINE float narrow(double x) {
    u64 bits = DOUBLE_BITS(x);
    if ((bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull)
        return BITS_FLOAT((u32)(bits >> 32 & 0x80000000u) | 0x7fc00000u | (u32)(bits >> 29 & 0x3fffffu));
    return (float)x;
}

INLINE double widen(float x) {
    u32 bits = FLOAT_BITS(x);
    if (is_nan(bits))
        return BITS_DOUBLE((u64)(bits & 0x80000000u) << 32 | 0x7ff8000000000000ull | (u64)(bits & 0x3fffffu) << 29);
    return (double)x;
}

// ---- photos ---------------------------------------------------------------------------------------------------------------------

// Four values of one plane, one after the other, at element `at`, which is a multiple of four.
INLINE void store4(const int to, void *out, u64 at, const float *x) {
    if (to == FLOAT32) {
        STORE4((float *)out + at, FLOAT_BITS(x[0]), FLOAT_BITS(x[1]), FLOAT_BITS(x[2]), FLOAT_BITS(x[3]));
    } else {
        u16 half[4];
        UNROLL
        for (int i = 0; i < 4; i++)
            half[i] = to == FLOAT16 ? to_f16(x[i]) : to_bf16(x[i]);
        STORE2((u16 *)out + at, half[0] | (u32)half[1] << 16, half[2] | (u32)half[3] << 16);
    }
}

INLINE void store(const int to, void *out, u64 at, float x) {
    if (to == FLOAT32)
        ((float *)out)[at] = x;
    else
        ((u16 *)out)[at] = to == FLOAT16 ? to_f16(x) : to_bf16(x);
}

// in: [images, plane, channels] bytes; out: [images, channels, plane] elements of `to`; plane: pixels of one image.
// Where `mask` is given, an image whose byte is 0 becomes zeros.
INLINE void normalise(const int channels, const int to, const u8 *in, void *out, const u8 *mask, u64 images, u64 plane,
                      const float *scale, const float *bias) {
    const u64 wide = to == FLOAT32 ? 16 : 8;
    // Four pixels at a time where their bytes are whole words and so are their results.
    const int fours = plane % 4 == 0 && (u64)in % 4 == 0 && (u64)out % wide == 0;
    for (u64 image = ROW; image < images; image += ROWS) {
        const int live = !mask || mask[image];
        const u8 *pixels = in + image * plane * channels;
        const u64 first = image * channels * plane;
        if (fours) {
            for (u64 four = THREAD; four < plane / 4; four += THREADS) {
                u32 words[4];
                UNROLL
                for (int w = 0; w < channels; w++)
                    words[w] = live ? ((const u32 *)pixels)[four * channels + w] : 0;
                UNROLL
                for (int c = 0; c < channels; c++) {
                    float x[4];
                    UNROLL
                    for (int i = 0; i < 4; i++) {
                        const int byte = i * channels + c;
                        const float value = (float)(words[byte / 4] >> (8 * (byte % 4)) & 0xffu);
                        x[i] = live ? FMA(value, scale[c], bias[c]) : 0.0f;
                    }
                    store4(to, out, first + c * plane + 4 * four, x);
                }
            }
        } else {
            for (u64 pixel = THREAD; pixel < plane; pixel += THREADS) {
                UNROLL
                for (int c = 0; c < channels; c++) {
                    const float value = live ? FMA((float)pixels[pixel * channels + c], scale[c], bias[c]) : 0.0f;
                    store(to, out, first + c * plane + pixel, value);
                }
            }
        }
    }
}

#define NORMALISE(name, channels, to) \
    KERNEL name(const u8 *in, void *out, const u8 *mask, u64 images, u64 plane, float s0, float s1, float s2, float s3, \
                float b0, float b1, float b2, float b3) { \
        const float scale[4] = {s0, s1, s2, s3}, bias[4] = {b0, b1, b2, b3}; \
        normalise(channels, to, in, out, mask, images, plane, scale, bias); \
    }

NORMALISE(normalise_1_float16, 1, FLOAT16)
NORMALISE(normalise_3_float16, 3, FLOAT16)
NORMALISE(normalise_4_float16, 4, FLOAT16)
NORMALISE(normalise_1_bfloat16, 1, BFLOAT16)
NORMALISE(normalise_3_bfloat16, 3, BFLOAT16)
NORMALISE(normalise_4_bfloat16, 4, BFLOAT16)
NORMALISE(normalise_1_float32, 1, FLOAT32)
NORMALISE(normalise_3_float32, 3, FLOAT32)
NORMALISE(normalise_4_float32, 4, FLOAT32)

// ---- boxes of decoded photos ----------------------------------------------------------------------------------------------------

// A photo, decoded: where its pixels are, `[height, width, channels]` bytes (nowhere: it becomes zeros); which row of the batch it is; what
// of it is wanted. As `Entry` in decoder.rs.
typedef struct {
    u64 pixels;
    u32 width, height, row, flags;
    double x, y, box_width, box_height;
} Photo;

enum { SEALED = 1, TRANSPOSE = 2, FLIP_X = 4, FLIP_Y = 8 };

// The pixels of one axis that count for one of the result: from `first` to before `end`; the distance of the first from the middle.
typedef struct {
    u32 first, end;
    float distance, shrink;
} Taps;

INLINE u32 bounded(double x, u32 low, u32 high) {
    const u32 whole = x > 0.0 ? (u32)x : 0;
    const u32 least = whole < low ? low : whole;
    return least > high ? high : least;
}

// For pixel `at` of `size`, of `length` pixels from `start` on, of `whole`: a triangle as wide as the scale, and at least two pixels.
INLINE Taps taps(double start, double length, u32 at, u32 size, u32 whole, int sealed) {
    const double scale = length / (double)size, support = scale > 1.0 ? scale : 1.0;
    const double middle = start + ((double)at + 0.5) * scale, end = start + length;
    const u32 last = (u32)end, above = last < end ? last + 1 : last;
    const u32 low = sealed && start > 0.0 ? (u32)start : 0, high = sealed && above < whole ? above : whole;
    Taps found;
    found.first = bounded(middle - support + 0.5, low, high - 1);
    found.end = bounded(middle + support + 0.5, found.first + 1, high);
    found.distance = (float)((double)found.first + 0.5 - middle);
    found.shrink = (float)(1.0 / support);
    return found;
}

INLINE float weight_of(const Taps *taps, u32 at) {
    const float distance = taps->distance + (float)(at - taps->first);
    const float weight = 1.0f - (distance < 0.0f ? -distance : distance) * taps->shrink;
    return weight > 0.0f ? weight : 0.0f;
}

// table: `photos` photos; out: rows of `height` x `width` pixels of `channels` (1 or 3) values of `to`, one channel after the other if
// `planes`. Bytes stay bytes; floats are normalised as above.
KERNEL resample(const Photo *table, void *out, u64 photos, u32 height, u32 width, int channels, int to, int planes, float s0,
                float s1, float s2, float b0, float b1, float b2) {
    const float scale[3] = {s0, s1, s2}, bias[3] = {b0, b1, b2};
    const u64 plane = (u64)height * width;
    for (u64 number = ROW; number < photos; number += ROWS) {
        const Photo photo = table[number];
        const u8 *pixels = (const u8 *)photo.pixels;
        const int turned = (photo.flags & TRANSPOSE) != 0, sealed = (photo.flags & SEALED) != 0;
        const u32 across = turned ? height : width, down = turned ? width : height;
        const u64 first = photo.row * plane * channels;
        for (u64 pixel = THREAD; pixel < plane; pixel += THREADS) {
            float sums[3] = {0.0f, 0.0f, 0.0f}, total = 0.0f;
            if (pixels) {
                const u32 seen_x = (u32)(pixel % width), seen_y = (u32)(pixel / width);
                u32 x = turned ? seen_y : seen_x, y = turned ? seen_x : seen_y;
                if (photo.flags & FLIP_X)
                    x = across - 1 - x;
                if (photo.flags & FLIP_Y)
                    y = down - 1 - y;
                const Taps columns = taps(photo.x, photo.box_width, x, across, photo.width, sealed);
                const Taps rows = taps(photo.y, photo.box_height, y, down, photo.height, sealed);
                for (u32 row = rows.first; row < rows.end; row++) {
                    float line[3] = {0.0f, 0.0f, 0.0f}, weights = 0.0f;
                    for (u32 column = columns.first; column < columns.end; column++) {
                        const float weight = weight_of(&columns, column);
                        const u8 *at = pixels + ((u64)row * photo.width + column) * channels;
                        UNROLL
                        for (int c = 0; c < 3; c++)
                            if (c < channels)
                                line[c] += weight * (float)at[c];
                        weights += weight;
                    }
                    const float weight = weight_of(&rows, row);
                    UNROLL
                    for (int c = 0; c < 3; c++)
                        sums[c] += weight * line[c];
                    total += weight * weights;
                }
            }
            UNROLL
            for (int c = 0; c < 3; c++) {
                if (c >= channels)
                    break;
                const float mean = pixels ? sums[c] / total + 0.5f : 0.0f;
                const u8 byte = mean < 255.0f ? (u8)mean : 255;
                const u64 at = first + (planes ? c * plane + pixel : pixel * channels + c);
                if (to == UINT8)
                    ((u8 *)out)[at] = byte;
                else
                    store(to, out, at, pixels ? FMA((float)byte, scale[c], bias[c]) : 0.0f);
            }
        }
    }
}

// ---- lists ----------------------------------------------------------------------------------------------------------------------

INLINE u64 least(u64 a, u64 b) {
    return a < b ? a : b;
}

// How many items of list `list` are kept, and where they begin. Offsets beyond the items are as their end.
INLINE u64 kept(const u64 *offsets, u64 list, u64 items, u64 length, u64 *first) {
    const u64 from = least(offsets[list], items), end = least(offsets[list + 1], items);
    *first = from;
    return end > from ? least(end - from, length) : 0;
}

// in: [items, item]; out: [lists, length, item]; `lanes_log2`: threads for one list, a power of two that divides those of a block;
// the blocks in y share a list among them.
#define PAD(name, type) \
    KERNEL name(const type *in, type *out, const u64 *offsets, u64 lists, u64 items, u64 length, u64 item, u64 fill, int left, \
                int lanes_log2) { \
        const u64 lane = THREAD & ((1ull << lanes_log2) - 1), row = length * item; \
        for (u64 list = THREAD >> lanes_log2; list < lists; list += THREADS >> lanes_log2) { \
            u64 first; \
            const u64 values = kept(offsets, list, items, length, &first) * item; \
            const u64 shift = left ? row - values : 0; \
            const type *from = in + first * item; \
            for (u64 at = (ROW << lanes_log2) + lane; at < row; at += ROWS << lanes_log2) \
                /* Before the values, the difference wraps. */ \
                out[list * row + at] = at - shift < values ? from[at - shift] : (type)fill; \
        } \
    }

PAD(pad_1, u8)
PAD(pad_2, u16)
PAD(pad_4, u32)
PAD(pad_8, u64)

// in: the offsets of lists; out: for each how many items are kept of it.
KERNEL lengths(const u64 *in, u64 *out, u64 lists, u64 items, u64 length) {
    u64 first;
    for (u64 list = THREAD; list < lists; list += THREADS)
        out[list] = kept(in, list, items, length, &first);
}

// ---- casts ----------------------------------------------------------------------------------------------------------------------

// An integer or a boolean, widened; the sign is that of its type.
INLINE u64 whole(const int from, const void *in, u64 at) {
    switch (from) {
    case BOOL: return ((const u8 *)in)[at] != 0;
    case UINT8: return ((const u8 *)in)[at];
    case INT8: return (u64)(s64)((const s8 *)in)[at];
    case UINT16: return ((const u16 *)in)[at];
    case INT16: return (u64)(s64)((const s16 *)in)[at];
    case UINT32: return ((const u32 *)in)[at];
    case INT32: return (u64)(s64)((const s32 *)in)[at];
    default: return ((const u64 *)in)[at];
    }
}

// Any element as a double, for a double: one rounding, from 64-bit integers.
INLINE double as_double(const int from, const void *in, u64 at) {
    switch (from) {
    case FLOAT16: return widen(from_f16(((const u16 *)in)[at]));
    case BFLOAT16: return widen(from_bf16(((const u16 *)in)[at]));
    case FLOAT32: return widen(((const float *)in)[at]);
    case FLOAT64: return ((const double *)in)[at];
    case UINT64: return (double)((const u64 *)in)[at];
    default: return (double)(s64)whole(from, in, at);
    }
}

// Any element as a float: one rounding.
INLINE float as_float(const int from, const void *in, u64 at) {
    switch (from) {
    case FLOAT16: return from_f16(((const u16 *)in)[at]);
    case BFLOAT16: return from_bf16(((const u16 *)in)[at]);
    case FLOAT32: return ((const float *)in)[at];
    case FLOAT64: return narrow(((const double *)in)[at]);
    case UINT64: return (float)((const u64 *)in)[at];
    default: return (float)(s64)whole(from, in, at);
    }
}

// `elements` of type `from` to as many of type `to`. Only casts that no value refuses: to a wider integer, from a boolean, and to a
// float (to float16 not from float64, to bfloat16 only from what float32 holds): the host side asks for no other.
KERNEL cast(const void *in, void *out, u64 elements, int from, int to) {
    for (u64 at = THREAD; at < elements; at += THREADS) {
        switch (to) {
        case BOOL:
        case UINT8:
        case INT8: ((u8 *)out)[at] = (u8)whole(from, in, at); break;
        case UINT16:
        case INT16: ((u16 *)out)[at] = (u16)whole(from, in, at); break;
        case UINT32:
        case INT32: ((u32 *)out)[at] = (u32)whole(from, in, at); break;
        case UINT64:
        case INT64: ((u64 *)out)[at] = whole(from, in, at); break;
        case FLOAT16: ((u16 *)out)[at] = to_f16(as_float(from, in, at)); break;
        case BFLOAT16: ((u16 *)out)[at] = to_bf16(as_float(from, in, at)); break;
        case FLOAT32: ((float *)out)[at] = as_float(from, in, at); break;
        default: ((double *)out)[at] = as_double(from, in, at);
        }
    }
}
