// A small fake of nvJPEG, for tests: the calls that the library uses, over the streams and the memory of the fake driver (cuda.c).
//
// It decodes baseline JPEG of one scan, by ITU T.81, with the inverse transform in floats and colours repeated instead of interpolated,
// so that its pixels are close but not equal to those of another decoder, as a GPU's are. It works late, when the stream reaches the call,
// from the bytes that are there by then. A state used while it is busy, a picture without room and a call without a context are
// violations.
//
// Calls fail as planned with the driver's fakeFail(). FAKE_NVJPEG_ENGINES: engines of the GPU, 7 by default. Compiled with FAKE_OLD it is
// a release that cannot report their number.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int

enum { OK = 0, NOT_INITIALIZED = 1, INVALID = 2, BAD_JPEG = 3, UNSUPPORTED = 4, ALLOCATOR = 5, EXECUTION = 6, ARCHITECTURE = 7 };
enum { DEFAULT = 0, HARDWARE = 3, OUTPUT_Y = 2, OUTPUT_RGBI = 5 };

// ---- the driver -----------------------------------------------------------------------------------------------------------------

static struct {
    int (*planned)(const char *), (*violation)(const char *), (*append)(void *, void (*)(void *), void *), (*holds)(const void *, size_t);
    int (*allocate)(uint64_t *, size_t), (*give_back)(uint64_t);
} driver;

static int connect_driver(void) {
    void *library = driver.planned ? NULL : dlopen("libcuda.so.1", RTLD_LAZY);
    if (library) {
        driver.violation = dlsym(library, "fakeViolation");
        driver.append = dlsym(library, "fakeAppend");
        driver.holds = dlsym(library, "fakeHolds");
        driver.allocate = dlsym(library, "cuMemAlloc_v2");
        driver.give_back = dlsym(library, "cuMemFree_v2");
        driver.planned = dlsym(library, "fakePlanned");
    }
    return driver.planned != NULL;
}

#define ENTER do { int code_ = driver.planned(__func__); if (code_) return code_; } while (0)

// ---- JPEG -----------------------------------------------------------------------------------------------------------------------

typedef struct { uint8_t counts[17], values[256]; int there; } Huffman;
typedef struct { int id, across, down, quantiser, dc, ac, before, stride, rows; uint8_t *samples; } Component;

typedef struct {
    int width, height, count, across, down, restart;
    Component component[3];
    uint16_t quantiser[4][64];
    Huffman huffman[2][4];
    const uint8_t *at, *end; // of the scan
    uint32_t bits;
    int left, marker;
} Jpeg;

static const uint8_t ZIGZAG[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

// Reads all markers before the scan.
static int parse(Jpeg *j, const uint8_t *data, size_t length) {
    memset(j, 0, sizeof *j);
    const uint8_t *at = data + 2, *end = data + length;
    if (length < 4 || data[0] != 0xff || data[1] != 0xd8)
        return BAD_JPEG;
    for (;;) {
        while (at < end && *at != 0xff)
            at++;
        while (at < end && *at == 0xff)
            at++;
        if (at + 3 > end)
            return BAD_JPEG;
        const int marker = *at++;
        if (marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd8))
            continue;
        const size_t bytes = at[0] << 8 | at[1];
        if (marker == 0xd9 || bytes < 2 || bytes > (size_t)(end - at))
            return BAD_JPEG;
        const uint8_t *p = at + 2, *last = at + bytes;
        at = last;
        if (marker == 0xdb) {
            while (p < last) {
                const int wide = *p >> 4, number = *p & 15;
                if (number > 3 || wide > 1 || p + 1 + (64 << wide) > last)
                    return BAD_JPEG;
                p++;
                for (int i = 0; i < 64; i++, p += 1 + wide)
                    j->quantiser[number][ZIGZAG[i]] = wide ? p[0] << 8 | p[1] : p[0];
            }
        } else if (marker == 0xc4) {
            while (p < last) {
                const int kind = *p >> 4, number = *p & 15;
                int sum = 0;
                if (kind > 1 || number > 3 || p + 17 > last)
                    return BAD_JPEG;
                Huffman *h = &j->huffman[kind][number];
                for (int i = 1; i <= 16; i++)
                    sum += h->counts[i] = p[i];
                if (sum > 256 || p + 17 + sum > last)
                    return BAD_JPEG;
                memcpy(h->values, p + 17, sum);
                h->there = 1;
                p += 17 + sum;
            }
        } else if (marker == 0xc0) {
            if (last - p < 6 || p[0] != 8 || (p[5] != 1 && p[5] != 3) || last - p < 6 + 3 * p[5])
                return UNSUPPORTED;
            j->height = p[1] << 8 | p[2], j->width = p[3] << 8 | p[4], j->count = p[5];
            for (int i = 0; i < j->count; i++) {
                Component *c = &j->component[i];
                c->id = p[6 + 3 * i], c->across = p[7 + 3 * i] >> 4, c->down = p[7 + 3 * i] & 15, c->quantiser = p[8 + 3 * i] & 3;
                if (j->count == 1)
                    c->across = c->down = 1;
                if (!c->across || c->across > 4 || !c->down || c->down > 4)
                    return BAD_JPEG;
                j->across = c->across > j->across ? c->across : j->across;
                j->down = c->down > j->down ? c->down : j->down;
            }
        } else if (marker > 0xc0 && marker <= 0xcf && marker != 0xc8 && marker != 0xcc) {
            return UNSUPPORTED;
        } else if (marker == 0xdd) {
            j->restart = p[0] << 8 | p[1];
        } else if (marker == 0xda) {
            if (!j->width || !j->height || p[0] != j->count || last - p < 1 + 2 * j->count)
                return j->width ? UNSUPPORTED : BAD_JPEG;
            for (int i = 0; i < j->count; i++) {
                j->component[i].dc = p[2 + 2 * i] >> 4 & 3, j->component[i].ac = p[2 + 2 * i] & 3;
                if (!j->huffman[0][j->component[i].dc].there || !j->huffman[1][j->component[i].ac].there)
                    return BAD_JPEG;
            }
            j->at = last, j->end = end;
            return OK;
        }
    }
}

// Returns the next bit; zeros after a marker.
static int bit(Jpeg *j) {
    if (!j->left) {
        int byte = 0;
        if (j->at < j->end && !j->marker) {
            byte = *j->at++;
            if (byte == 0xff) {
                while (j->at < j->end && *j->at == 0xff)
                    j->at++;
                if (j->at < j->end && *j->at)
                    j->marker = *j->at, byte = 0;
                j->at++;
            }
        } else {
            j->marker = j->marker ? j->marker : 0xd9;
        }
        j->bits = byte, j->left = 8;
    }
    return j->bits >> --j->left & 1;
}

static int receive(Jpeg *j, int count) {
    int value = 0;
    for (int i = 0; i < count; i++)
        value = value << 1 | bit(j);
    return count && value < 1 << (count - 1) ? value - (1 << count) + 1 : value;
}

static int symbol(Jpeg *j, const Huffman *h) {
    int code = 0, first = 0, index = 0;
    for (int length = 1; length <= 16; length++) {
        code = code << 1 | bit(j);
        const int count = h->counts[length];
        if (code - first < count)
            return h->values[index + code - first];
        index += count, first = (first + count) << 1;
    }
    return -1;
}

static float COSINES[8][8];

__attribute__((constructor)) static void prepare(void) {
    for (int x = 0; x < 8; x++)
        for (int u = 0; u < 8; u++)
            COSINES[x][u] = (u ? 0.5 : 0.5 / sqrt(2)) * cos((2 * x + 1) * u * M_PI / 16);
}

static void inverse(const float *in, uint8_t *out, int stride) {
    float half[64];
    for (int y = 0; y < 8; y++)
        for (int x = 0; x < 8; x++) {
            float sum = 0;
            for (int u = 0; u < 8; u++)
                sum += COSINES[x][u] * in[8 * y + u];
            half[8 * y + x] = sum;
        }
    for (int y = 0; y < 8; y++)
        for (int x = 0; x < 8; x++) {
            float sum = 128.5f;
            for (int v = 0; v < 8; v++)
                sum += COSINES[y][v] * half[8 * v + x];
            out[y * stride + x] = sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
        }
}

static int block(Jpeg *j, Component *c, uint8_t *out) {
    float values[64] = {0};
    const uint16_t *quantiser = j->quantiser[c->quantiser];
    const int size = symbol(j, &j->huffman[0][c->dc]);
    if (size < 0 || size > 11)
        return BAD_JPEG;
    values[0] = (c->before += receive(j, size)) * quantiser[0];
    for (int k = 1; k < 64; k++) {
        const int both = symbol(j, &j->huffman[1][c->ac]);
        if (both < 0)
            return BAD_JPEG;
        const int run = both >> 4, bits = both & 15;
        if (!bits && run != 15)
            break;
        if ((k += run) > 63)
            return BAD_JPEG;
        values[ZIGZAG[k]] = receive(j, bits) * quantiser[ZIGZAG[k]];
    }
    if (out)
        inverse(values, out, c->stride);
    return OK;
}

// Decodes all blocks of the scan; stores samples only if there is room for them.
static int scan(Jpeg *j) {
    const int wide = (j->width + 8 * j->across - 1) / (8 * j->across), high = (j->height + 8 * j->down - 1) / (8 * j->down);
    for (int unit = 0; unit < wide * high; unit++) {
        if (j->restart && unit && unit % j->restart == 0) {
            while (!j->marker && j->at < j->end)
                j->left = 0, bit(j);
            if (j->marker < 0xd0 || j->marker > 0xd7)
                return BAD_JPEG;
            j->marker = j->left = 0;
            for (int i = 0; i < j->count; i++)
                j->component[i].before = 0;
        }
        for (int i = 0; i < j->count; i++) {
            Component *c = &j->component[i];
            for (int b = 0; b < c->across * c->down; b++) {
                const int x = unit % wide * c->across + b % c->across, y = unit / wide * c->down + b / c->across;
                if (block(j, c, c->samples ? c->samples + (size_t)8 * y * c->stride + 8 * x : NULL))
                    return BAD_JPEG;
            }
        }
    }
    return j->marker && j->marker != 0xd9 ? BAD_JPEG : OK;
}

static uint8_t rounded(float x) { return x < 0 ? 0 : x > 254.5f ? 255 : (uint8_t)(x + 0.5f); }

static void decode(const uint8_t *data, size_t length, uint8_t *out, size_t pitch, int format) {
    Jpeg j;
    if (parse(&j, data, length))
        return;
    for (int i = 0; i < j.count; i++) {
        Component *c = &j.component[i];
        c->stride = (j.width + 8 * j.across - 1) / (8 * j.across) * 8 * c->across;
        c->rows = (j.height + 8 * j.down - 1) / (8 * j.down) * 8 * c->down;
        c->samples = calloc(c->stride, c->rows);
        memset(c->samples, 128, (size_t)c->stride * c->rows);
    }
    scan(&j);
    for (int y = 0; y < j.height; y++)
        for (int x = 0; x < j.width; x++) {
            float value[3] = {0, 128, 128};
            for (int i = 0; i < j.count; i++) {
                const Component *c = &j.component[i];
                value[i] = c->samples[(size_t)(y * c->down / j.down) * c->stride + x * c->across / j.across];
            }
            if (format == OUTPUT_Y) {
                out[y * pitch + x] = (uint8_t)value[0];
                continue;
            }
            uint8_t *to = out + y * pitch + 3 * x;
            const float luma = value[0], blue = value[1] - 128, red = value[2] - 128;
            to[0] = rounded(luma + 1.402f * red);
            to[1] = rounded(luma - 0.344136f * blue - 0.714136f * red);
            to[2] = rounded(luma + 1.772f * blue);
        }
    for (int i = 0; i < j.count; i++)
        free(j.component[i].samples);
}

// ---- the library ----------------------------------------------------------------------------------------------------------------

// Every object allocates memory of the device, so that unreleased ones show in the driver's balance.
typedef struct { uint64_t memory; int backend; } Handle;
typedef struct { uint64_t memory; int width, height, supported; } Header;
typedef struct { uint64_t memory; int batch, format; atomic_int busy; } State;
typedef struct { uint8_t *channel[4]; size_t pitch[4]; } Image;
typedef struct { State *state; int count, format; struct { const uint8_t *data; size_t length; Image image; } of[]; } Work;

static int engines(void) {
    const char *text = getenv("FAKE_NVJPEG_ENGINES");
    return text ? atoi(text) : 7;
}

static int made(void **out, size_t bytes) {
    uint64_t *object = calloc(1, bytes);
    if (driver.allocate(object, 256)) {
        free(object);
        return ALLOCATOR;
    }
    *out = object;
    return OK;
}

static void unmade(void *object) {
    driver.give_back(*(uint64_t *)object);
    free(object);
}

API nvjpegGetProperty(int type, int *value) {
    static const int version[3] = {12, 3, 1};
    if (type < 0 || type > 2)
        return INVALID;
    return *value = version[type], OK;
}

API nvjpegCreateEx(int backend, void *device, void *pinned, unsigned flags, Handle **handle) {
    if (!connect_driver())
        return EXECUTION;
    ENTER;
    if (device || pinned || flags || (backend != DEFAULT && backend != HARDWARE))
        return INVALID;
    if (backend == HARDWARE && !engines())
        return ARCHITECTURE;
    int code = made((void **)handle, sizeof **handle);
    if (!code)
        (*handle)->backend = backend;
    return code;
}

API nvjpegDestroy(Handle *handle) { return unmade(handle), driver.planned(__func__); }

#ifndef FAKE_OLD
API nvjpegGetHardwareDecoderInfo(Handle *handle, unsigned *count, unsigned *cores) {
    ENTER;
    (void)handle;
    *count = engines(), *cores = 1;
    return OK;
}
#endif

API nvjpegJpegStateCreate(Handle *handle, State **state) {
    ENTER;
    (void)handle;
    return made((void **)state, sizeof **state);
}

API nvjpegJpegStateDestroy(State *state) {
    if (atomic_load(&state->busy))
        driver.violation("a state of nvJPEG given back while it is busy");
    return unmade(state), driver.planned(__func__);
}

API nvjpegJpegStreamCreate(Handle *handle, Header **header) {
    ENTER;
    (void)handle;
    return made((void **)header, sizeof **header);
}

API nvjpegJpegStreamDestroy(Header *header) { return unmade(header), driver.planned(__func__); }

API nvjpegJpegStreamParseHeader(Handle *handle, const uint8_t *data, size_t length, Header *header) {
    ENTER;
    (void)handle;
    Jpeg j;
    int code = parse(&j, data, length);
    header->width = j.width, header->height = j.height;
    header->supported = !code && (j.count == 1 || (j.across <= 2 && j.down <= 2));
    return code;
}

API nvjpegJpegStreamGetFrameDimensions(Header *header, unsigned *width, unsigned *height) {
    ENTER;
    *width = header->width, *height = header->height;
    return OK;
}

API nvjpegDecodeBatchedSupported(Handle *handle, Header *header, int *unsupported) {
    ENTER;
    (void)handle;
    *unsupported = !header->supported;
    return OK;
}

API nvjpegDecodeBatchedInitialize(Handle *handle, State *state, int batch, int threads, int format) {
    ENTER;
    (void)handle;
    if (batch < 1 || threads < 1 || (format != OUTPUT_Y && format != OUTPUT_RGBI))
        return INVALID;
    if (atomic_load(&state->busy))
        driver.violation("a state of nvJPEG prepared while it is busy");
    state->batch = batch, state->format = format;
    return OK;
}

static void run(void *argument) {
    Work *work = argument;
    for (int i = 0; i < work->count; i++)
        decode(work->of[i].data, work->of[i].length, work->of[i].image.channel[0], work->of[i].image.pitch[0], work->format);
    atomic_store(&work->state->busy, 0);
    free(work);
}

API nvjpegDecodeBatched(Handle *handle, State *state, const uint8_t *const *data, const size_t *lengths, Image *images, void *stream) {
    ENTER;
    (void)handle;
    if (!state->batch)
        return NOT_INITIALIZED;
    if (atomic_exchange(&state->busy, 1))
        driver.violation("a state of nvJPEG used while it is busy");
    Work *work = malloc(sizeof *work + state->batch * sizeof *work->of);
    *work = (Work){state, state->batch, state->format};
    int code = OK;
    for (int i = 0; i < state->batch && !code; i++) {
        Jpeg j;
        code = parse(&j, data[i], lengths[i]);
        code = code ? code : scan(&j);
        const size_t row = state->format == OUTPUT_Y ? j.width : 3 * j.width;
        if (!code && (images[i].pitch[0] < row || !driver.holds(images[i].channel[0], images[i].pitch[0] * (j.height - 1) + row))) {
            driver.violation("a picture of nvJPEG without room");
            code = INVALID;
        }
        work->of[i].data = data[i], work->of[i].length = lengths[i], work->of[i].image = images[i];
    }
    if (!code && driver.append(stream, run, work))
        code = EXECUTION;
    if (code) {
        atomic_store(&state->busy, 0);
        free(work);
    }
    return code;
}
