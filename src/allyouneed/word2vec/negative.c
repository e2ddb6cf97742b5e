/* word2vec with negative sampling: one step of gradient descent a word, in place.

   negative.py says what is computed, and has this file compiled when it is first needed, with the sizes that the loops
   are unrolled for: WIDTH of a vector, NEGATIVES, CBOW (0 or 1), and SETS of noise that a word may draw, 1 or MOST.
   draws.py draws the same noise.

   Threads may work on one pair of matrices at once: they overwrite each other now and then, which costs nothing that
   could be measured (Hogwild; Niu et al., 2011). One thread alone always gives the same bits. */

#include <math.h>
#include <stdint.h>

/* The numbers of a register, and how many registers of each vector are worked on at once: what fits into 32 or 16. */
#if defined(__AVX512F__)
#define LANES 16
#define AT_ONCE 2
#elif defined(__AVX__)
#define LANES 8
#define AT_ONCE 1
#else
#define LANES 4
#define AT_ONCE 2
#endif
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

#define OUTPUTS (1 + NEGATIVES)                 /* the word itself, then the noise */
#define WHOLE (WIDTH / LANES * LANES)           /* the rest of a vector goes number by number */
#define MOST 64                                 /* neighbours of a word */
#define CLIP 15.0f                              /* beyond it a sigmoid is 0 or 1 */

/* As in draws.py. */
static uint64_t draw(uint64_t key, uint64_t place) {
    uint64_t v = key + place * 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

static int32_t noise(const int32_t *table, int64_t vocab, uint64_t key, uint64_t place) {
    uint64_t bits = draw(key, place);
    int32_t column = (int32_t)(((bits >> 32) * (uint64_t)vocab) >> 32);
    return (int32_t)(bits & 0x7FFFFFFF) <= table[2 * column] ? column : table[2 * column + 1];
}

static inline float sum(Vec v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

/* 1 / (1 + e^-x) for |x| <= CLIP: e^y = 2^n · 2^f with n whole and |f| <= 1/2, 2^f by its series. */
static inline Vec sigmoid(Vec x) {
    Vec y = x * -1.44269504f;
    Vec n = (y + 12582912.0f) - 12582912.0f;    /* rounds, for above 2^23 there are no fractions */
    Vec f = (y - n) * 0.69314718f;
    Vec p = 1.0f + f * (1.0f + f * (0.5f + f * (1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f * (1 / 720.0f))))));
    Vec power = (Vec)((__builtin_convertvector(n, Ints) + 127) << 23);
    return 1.0f / (1.0f + p * power);
}

/* scores[c][k] = x_c · u_k for `rows` inputs, a constant where it is called. */
static inline __attribute__((always_inline)) void products(
    int rows, float *const *x, float *const *u, float (*scores)[OUTPUTS]) {
    Vec part[4][OUTPUTS];
    for (int c = 0; c < rows; c++)
        for (int k = 0; k < OUTPUTS; k++) part[c][k] = (Vec){0};
    for (int d = 0; d < WHOLE; d += LANES)
        for (int k = 0; k < OUTPUTS; k++) {
            Vec y = *(const Vec *)(u[k] + d);
            for (int c = 0; c < rows; c++) part[c][k] += *(const Vec *)(x[c] + d) * y;
        }
    for (int c = 0; c < rows; c++)
        for (int k = 0; k < OUTPUTS; k++) {
            float s = sum(part[c][k]);
            for (int d = WHOLE; d < WIDTH; d++) s += x[c][d] * u[k][d];
            scores[c][k] = s;
        }
}

/* At n places of the vectors, of type T: every output moves by Σ_c g_ck x_c and every input by Σ_k g_ck u_k, all from
   the values before; an input that comes twice moves twice. Of CBOW's one input, a mean, only the move is wanted. */
#define MOVE(T, n, d)                                                                  \
    do {                                                                               \
        T y[OUTPUTS][n], moved[OUTPUTS][n], v[n], after[n];                            \
        for (int k = 0; k < OUTPUTS; k++)                                              \
            for (int i = 0; i < n; i++) y[k][i] = moved[k][i] = ((const T *)(u[k] + d))[i]; \
        for (int c = 0; c < count; c++) {                                              \
            for (int i = 0; i < n; i++) {                                              \
                v[i] = ((const T *)(x[c] + d))[i];                                     \
                after[i] = CBOW ? (T){0} : v[i];                                       \
            }                                                                          \
            for (int k = 0; k < OUTPUTS; k++)                                          \
                for (int i = 0; i < n; i++) {                                          \
                    after[i] += g[c][k] * y[k][i];                                     \
                    moved[k][i] += g[c][k] * v[i];                                     \
                }                                                                      \
            for (int i = 0; i < n; i++) ((T *)((CBOW ? move : x[c]) + d))[i] = after[i]; \
        }                                                                              \
        for (int k = 0; k < OUTPUTS; k++)                                              \
            for (int i = 0; i < n; i++) ((T *)(u[k] + d))[i] = moved[k][i];            \
    } while (0)

/* One step with the inputs x_c and the outputs u_k, no two of them the same, of which u_0 is the right one and the others were
   drawn so many times: loss = -Σ_c [log σ(x_c · u_0) + Σ_k times_k log σ(-x_c · u_k)]. Returns the loss before it. */
static double step(int count, float *const *x, float *const *u, const int *times, float rate, float *move) {
    float g[MOST][OUTPUTS] __attribute__((aligned(64)));
    int c = 0, d = 0;
    for (; c + 4 <= count; c += 4) products(4, x + c, u, g + c);
    for (; c + 2 <= count; c += 2) products(2, x + c, u, g + c);
    for (; c < count; c++) products(1, x + c, u, g + c);

    /* With t = s for the right output and -s for the others: p = σ(t), and -log p falls by 1 - p where t rises by 1. */
    float *flat = g[0];
    for (int i = count * OUTPUTS; i % LANES; i++) flat[i] = 0;
    for (c = 0; c < count; c++)
        for (int k = 0; k < OUTPUTS; k++) {
            float t = k ? -g[c][k] : g[c][k];
            g[c][k] = t > CLIP ? CLIP : t < -CLIP ? -CLIP : t;
        }
    for (int i = 0; i < count * OUTPUTS; i += LANES) *(Vec *)(flat + i) = sigmoid(*(Vec *)(flat + i));
    double loss = 0, likely = 1;
    for (c = 0; c < count; c++) {
        for (int k = 0; k < OUTPUTS; k++) {
            float p = g[c][k];
            for (int n = 0; n < times[k]; n++) likely *= p;
            g[c][k] = (k ? -rate : rate) * times[k] * (1 - p);
        }
        if (likely < 1e-90) {                   /* one logarithm for as many factors as a double holds */
            loss -= log(likely);
            likely = 1;
        }
    }
    for (; d + AT_ONCE * LANES <= WHOLE; d += AT_ONCE * LANES) MOVE(Vec, AT_ONCE, d);
    for (; d < WHOLE; d += LANES) MOVE(Vec, 1, d);
    for (; d < WIDTH; d++) MOVE(float, 1, d);
    return loss - log(likely);
}

/* The outputs of a word: its own, then the noise. Noise that is the word itself does not count, and what was drawn
   twice counts twice; both leave an output without a row, which gets the spare one. */
static void choose(int32_t word, const int32_t *drawn, float *outputs, float *spare, float **u, int *times) {
    u[0] = outputs + (int64_t)word * WIDTH;
    times[0] = 1;
    for (int k = 1; k < OUTPUTS; k++) {
        u[k] = outputs + (int64_t)drawn[k - 1] * WIDTH;
        times[k] = 1;
        for (int j = 0; j < k; j++)
            if (u[j] == u[k]) {
                u[k] = spare;
                times[k] = 0;
                times[j] += j > 0;
                break;
            }
    }
}

/* Works on the words from … to - 1 of a text, each with its line and how far it looks; there are as many places with
   another line before and after them. Adds the loss to seen[0], and to seen[1] the number of predictions. */
void learn(
    const int32_t *words, const int32_t *line, const int32_t *reach, int64_t from, int64_t to,
    float *inputs, float *outputs, const int32_t *table, int64_t vocab, uint64_t key, float rate, double *seen) {
    float *x[MOST], *u[OUTPUTS], spare[WIDTH] = {0}, mean[WIDTH], move[WIDTH], *one = mean;
    int32_t next[NEGATIVES];
    int times[OUTPUTS];
    for (int k = 0; k < NEGATIVES; k++) next[k] = noise(table, vocab, key, from * SETS * NEGATIVES + k);
    for (int64_t i = from; i < to; i++) {
        int64_t low = i, high = i + 1;
        while (i - low < reach[i] && line[low - 1] == line[i]) low--;
        while (high - i <= reach[i] && line[high] == line[i]) high++;
        int count = 0;
        for (int64_t j = low; j < high; j++)
            if (j != i) x[count++] = inputs + (int64_t)words[j] * WIDTH;
        if (CBOW) {
            for (int d = 0; d < WIDTH; d++) mean[d] = 0;
            for (int c = 0; c < count; c++)
                for (int d = 0; d < WIDTH; d++) mean[d] += x[c][d] * (1.0f / count);
        }
        int sets = SETS == 1 || !count ? 1 : count;
        for (int set = 0; set < sets; set++) {
            choose(words[i], next, outputs, spare, u, times);
            int64_t following = set + 1 < sets ? i * SETS + set + 1 : (i + 1) * SETS;
            for (int k = 0; k < NEGATIVES; k++) {   /* on its way while this set is worked on */
                next[k] = noise(table, vocab, key, following * NEGATIVES + k);
                __builtin_prefetch(outputs + (int64_t)next[k] * WIDTH, 1);
            }
            if (!count) continue;
            if (CBOW) seen[0] += step(1, &one, u, times, rate, move);
            else if (SETS == 1) seen[0] += step(count, x, u, times, rate, move);
            else seen[0] += step(1, x + set, u, times, rate, move);
        }
        if (CBOW)
            for (int c = 0; c < count; c++)
                for (int d = 0; d < WIDTH; d++) x[c][d] += move[d] * (1.0f / count);
        seen[1] += CBOW ? count > 0 : count;
    }
}
