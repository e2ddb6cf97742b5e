/* word2vec with negative sampling: one step of gradient descent per word, in place.

   tests/plain_word2vec.py has the same computation as short loops; sampling.py draws the same negative samples.
   kernels.py compiles this file when it is first needed, for fixed sizes, so that the loops can be unrolled: the WIDTH
   of a vector, the number of NEGATIVES per set, CBOW (0 or 1), and the SETS of negative samples that a word may use:
   1, or one per neighbour (MAX_NEIGHBOURS). It also passes the limits MAX_WIDTH, MAX_WINDOW and MAX_NEGATIVES, and
   checks every tensor before it calls `learn`: nothing is checked here at run time.

   Several threads may work on the same two matrices at once. They sometimes overwrite each other's updates, which has
   no measurable cost (Hogwild; Niu et al., 2011). One thread alone always gives the same bits. */

#include <math.h>
#include <stdint.h>

/* Floats per register, and how many registers of each vector are in use at once: as many as 32 or 16 registers allow. */
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

#define OUTPUTS (1 + NEGATIVES)                 /* the word itself, then its negative samples */
#define WHOLE (WIDTH / LANES * LANES)           /* the rest of a vector is done float by float */
#define CLIP 15.0f                              /* scores beyond it are clipped: their sigmoid is 0 or 1 */

/* The arrays below are on the stack and have these sizes. */
_Static_assert(WIDTH >= 1 && WIDTH <= MAX_WIDTH, "a vector must fit on the stack three times");
_Static_assert(MAX_WIDTH <= 16384, "three vectors must leave room on the stack of a thread");
_Static_assert(NEGATIVES >= 1 && NEGATIVES <= MAX_NEGATIVES && MAX_NEGATIVES <= 64, "outputs must fit on the stack");
_Static_assert(2 * MAX_WINDOW <= MAX_NEIGHBOURS, "the neighbours on both sides must fit into the array of inputs");
_Static_assert(MAX_NEIGHBOURS % LANES == 0, "whole registers must fit into the array of scores");
_Static_assert(SETS == 1 || (SETS == MAX_NEIGHBOURS && !CBOW), "one set of negative samples, or one per neighbour");

/* As in randomness.py. */
static uint64_t draw(uint64_t key, uint64_t place) {
    uint64_t v = key + place * 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

/* As `draw_negatives` in sampling.py. */
static int32_t draw_negative(const int32_t *table, int64_t vocab, uint64_t key, uint64_t place) {
    uint64_t bits = draw(key, place);
    int32_t column = (int32_t)(((bits >> 32) * (uint64_t)vocab) >> 32);
    return (int32_t)(bits & 0x7FFFFFFF) <= table[2 * column] ? column : table[2 * column + 1];
}

static inline float sum(Vec v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

/* 1 / (1 + e^-x) for |x| <= CLIP: e^-x = 2^n · 2^f with an integer n and |f| <= 1/2; 2^f by its Taylor series. */
static inline Vec sigmoid(Vec x) {
    Vec y = x * -1.44269504f;
    Vec n = (y + 12582912.0f) - 12582912.0f;    /* rounds: above 2^23 a float has no fraction */
    Vec f = (y - n) * 0.69314718f;
    Vec p = 1.0f + f * (1.0f + f * (0.5f + f * (1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f * (1 / 720.0f))))));
    Vec power = (Vec)((__builtin_convertvector(n, Ints) + 127) << 23);
    return 1.0f / (1.0f + p * power);
}

/* scores[c][k] = x_c · u_k for `rows` inputs, at most 4; `rows` is a constant at every call. */
static inline __attribute__((always_inline)) void dot_products(
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

/* Update n neighbouring elements, of type T, of every vector: u_k += Σ_c g_ck x_c and x_c += Σ_k g_ck u_k, with the old
   u_k. CBOW has one input, the mean of the neighbours: it is not changed, its update is stored in `d_mean`. */
#define UPDATE(T, n, d)                                                                \
    do {                                                                               \
        T old_u[OUTPUTS][n], new_u[OUTPUTS][n], old_x[n], new_x[n];                    \
        for (int k = 0; k < OUTPUTS; k++)                                              \
            for (int i = 0; i < n; i++) old_u[k][i] = new_u[k][i] = ((const T *)(u[k] + d))[i]; \
        for (int c = 0; c < count; c++) {                                              \
            for (int i = 0; i < n; i++) {                                              \
                old_x[i] = ((const T *)(x[c] + d))[i];                                 \
                new_x[i] = CBOW ? (T){0} : old_x[i];                                   \
            }                                                                          \
            for (int k = 0; k < OUTPUTS; k++)                                          \
                for (int i = 0; i < n; i++) {                                          \
                    new_x[i] += g[c][k] * old_u[k][i];                                 \
                    new_u[k][i] += g[c][k] * old_x[i];                                 \
                }                                                                      \
            for (int i = 0; i < n; i++) ((T *)((CBOW ? d_mean : x[c]) + d))[i] = new_x[i]; \
        }                                                                              \
        for (int k = 0; k < OUTPUTS; k++)                                              \
            for (int i = 0; i < n; i++) ((T *)(u[k] + d))[i] = new_u[k][i];            \
    } while (0)

/* One step with the inputs x_c and the outputs u_k, all different rows. u_0 is the right one; times[k] says how often
   u_k was drawn. loss = -Σ_c [log σ(x_c · u_0) + Σ_k times_k log σ(-x_c · u_k)]. Returns the loss before the step. */
static double step(int count, float *const *x, float *const *u, const int *times, float rate, float *d_mean) {
    float g[MAX_NEIGHBOURS][OUTPUTS] __attribute__((aligned(64)));
    int c = 0, d = 0;
    for (; c + 4 <= count; c += 4) dot_products(4, x + c, u, g + c);
    for (; c + 2 <= count; c += 2) dot_products(2, x + c, u, g + c);
    for (; c < count; c++) dot_products(1, x + c, u, g + c);

    /* With t = score for the right output and -score for the others: p = σ(t), and d(-log p)/dt = -(1 - p). */
    float *flat = g[0];
    for (int i = count * OUTPUTS; i % LANES; i++) flat[i] = 0;
    for (c = 0; c < count; c++)
        for (int k = 0; k < OUTPUTS; k++) {
            float t = k ? -g[c][k] : g[c][k];
            g[c][k] = t > CLIP ? CLIP : t < -CLIP ? -CLIP : t;
        }
    for (int i = 0; i < count * OUTPUTS; i += LANES) *(Vec *)(flat + i) = sigmoid(*(Vec *)(flat + i));
    double loss = 0, product = 1;
    for (c = 0; c < count; c++) {
        for (int k = 0; k < OUTPUTS; k++) {
            float p = g[c][k];
            for (int n = 0; n < times[k]; n++) product *= p;
            g[c][k] = (k ? -rate : rate) * times[k] * (1 - p);
        }
        if (product < 1e-90) {                  /* one logarithm for as many factors as a double can hold */
            loss -= log(product);
            product = 1;
        }
    }
    for (; d + AT_ONCE * LANES <= WHOLE; d += AT_ONCE * LANES) UPDATE(Vec, AT_ONCE, d);
    for (; d < WHOLE; d += LANES) UPDATE(Vec, 1, d);
    for (; d < WIDTH; d++) UPDATE(float, 1, d);
    return loss - log(product);
}

/* The outputs of a word: its own row, then those of its negative samples. A sample that is the word itself does not
   count, and one that was drawn twice counts twice; both leave an output without a row, which gets the spare row. */
static void collect_outputs(
    int32_t word, const int32_t *samples, float *outputs, float *spare, float **u, int *times) {
    u[0] = outputs + (int64_t)word * WIDTH;
    times[0] = 1;
    for (int k = 1; k < OUTPUTS; k++) {
        u[k] = outputs + (int64_t)samples[k - 1] * WIDTH;
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

/* One step for each of the words from … to - 1. There are `window` empty places, with another line number, before the
   first word and after the last. Adds the loss to sums[0], and the number of predictions to sums[1]. */
void learn(
    const int32_t *words, const int32_t *lines, const int32_t *radii, int64_t from, int64_t to,
    float *inputs, float *outputs, const int32_t *table, int64_t vocab, uint64_t key, float rate, double *sums) {
    float *x[MAX_NEIGHBOURS], *u[OUTPUTS], spare[WIDTH] = {0}, mean[WIDTH], d_mean[WIDTH], *one = mean;
    int32_t next[NEGATIVES];
    int times[OUTPUTS];
    for (int k = 0; k < NEGATIVES; k++) next[k] = draw_negative(table, vocab, key, from * SETS * NEGATIVES + k);
    for (int64_t i = from; i < to; i++) {
        int64_t low = i, high = i + 1;
        while (i - low < radii[i] && lines[low - 1] == lines[i]) low--;
        while (high - i <= radii[i] && lines[high] == lines[i]) high++;
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
            collect_outputs(words[i], next, outputs, spare, u, times);
            int64_t following = set + 1 < sets ? i * SETS + set + 1 : (i + 1) * SETS;
            for (int k = 0; k < NEGATIVES; k++) {   /* the next set is fetched while this one is used */
                next[k] = draw_negative(table, vocab, key, following * NEGATIVES + k);
                __builtin_prefetch(outputs + (int64_t)next[k] * WIDTH, 1);
            }
            if (!count) continue;
            if (CBOW) sums[0] += step(1, &one, u, times, rate, d_mean);
            else if (SETS == 1) sums[0] += step(count, x, u, times, rate, d_mean);
            else sums[0] += step(1, x + set, u, times, rate, d_mean);
        }
        if (CBOW)
            for (int c = 0; c < count; c++)
                for (int d = 0; d < WIDTH; d++) x[c][d] += d_mean[d] * (1.0f / count);
        sums[1] += CBOW ? count > 0 : count;
    }
}
