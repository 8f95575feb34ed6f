"""A CUDA file written for the tests, an upstream of texts, and a way to ask it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringproof.anchors import AnchorResolver, Resolution
from ringproof.cards import Anchor
from ringproof.upstream.tree import refuse_escape

KERNELS = r"""// A file header.
#include <vector>
#ifndef RINGS_LIMIT
#define RINGS_LIMIT 8
#endif
#define RINGS_CHECK(expr, ...) \
  do {                         \
    if (!(expr)) fail(#expr);  \
  } while (false)

RINGS_DECLARE(first)
RINGS_DECLARE(second)

namespace outer {
namespace rings {

constexpr int kWidth = 32;
const float table[2] = {1.0f, 2.0f};
using Index = std::vector<int>;
typedef void (*callback)(int);

enum Mode { kFast = 1, kSafe, kBoth = kFast | kSafe };
enum class Level : int {
  kLow,
  kHigh = 4,  //!< never reached
};

/*! \brief What a ring is. */
struct RINGS_API Ring final : public Base<int> {
  Ring(int size) : size_{size}, next_(0) { RINGS_CHECK(size > 0, "no ranks"); }
  ~Ring() = default;
  int send(int to) const;
  int send(int to, int times) { return times * to; }
  bool operator==(const Ring &other) const { return size_ == other.size_; }
  explicit operator bool() const { return size_ != 0; }
  struct Inner {
    int depth = 3;
  };
  static int made;
  unsigned size_, next_ = 7;
  int (*hook)(int a, int b);
};

int Ring::made = 0;

int Ring::send(int to) const {
  return to + next_;
}

union Bits {
  int whole;
  char parts[4];
};

typedef struct {
  int from;
} Edge, *EdgePointer;

template <typename T>
__device__ __forceinline__ T shifted(T value, int by = 1) {
  return value + by;
}

template <typename T, int kBlock = (4 > 2 ? 8 : 4)>
__global__ void __launch_bounds__(kBlock, RINGS_LIMIT)
    partition_kernel(const T *__restrict__ input, T *output, const int count) {
  extern __shared__ T shared[];
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < count) {
    output[place] = shifted<T>(input[place], 2);  // forbidden_word
  }
}

RINGS_EXPORT void launch(const Plan &plan, cudaStream_t stream) {
  RINGS_TYPE_SWITCH(plan.dtype, Type, {
    partition_kernel<Type><<<plan.blocks, kWidth, 0, stream>>>(plan.in, plan.out, plan->count);
  });
  RINGS_TYPE_SWITCH(plan.dtype, Type, first<Type>(); second<Type>(););
  RINGS_CHECK(plan.count > 0, "the plan of rank ", plan.rank, " is "
              "empty");
}

#if RINGS_VERSION >= 3
[[nodiscard]]
int chosen(int a) {
  return a;
}
#else
int chosen(long a) {
  return 2;
}
#endif

void split(int a
#ifdef RINGS_WIDE
           , int wide
#endif
) {
#ifdef RINGS_WIDE
  if (wide) {
#else
  if (a) {
#endif
    done("}{");
  }
}

namespace {
int hidden() { return '}'; }
}  // namespace

}  // namespace rings
}  // namespace outer

#ifdef __cplusplus
extern "C" {
#endif
void plain(int value);
int both(int);
int both(int a) { return R"x( } " )x"[a]; }
extern int shared_count;
struct Opaque;
#ifdef __cplusplus
}  // extern "C"
#endif

PYBIND11_MODULE(_rings, m) {
  m.def("plan_ring", &outer::rings::launch, "Plan one ring.",
        py::arg("plan"), py::arg("stream") = 0);
  py::class_<Ring>(m, "Ring")
      .def("send_twice", &Ring::send);
}
"""


class TextTree:
    """An upstream of texts by path."""

    origin = "texts"

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = files

    def read(self, path: str) -> bytes:
        refuse_escape(path)
        if path not in self._files:
            raise FileNotFoundError(path)
        source = self._files[path]
        return source if isinstance(source, bytes) else source.encode()

    def paths(self, under: str = "") -> Iterator[str]:
        return (path for path in self._files if path.startswith(under))


def anchor(symbol: str, *expects: str, path: str = "a.cu") -> Anchor:
    return Anchor(id="a", upstream="u", path=path, symbol=symbol, role="r", expects=expects)


def resolve(symbol: str, *expects: str, source: str | bytes = KERNELS) -> Resolution:
    return AnchorResolver(TextTree({"a.cu": source})).resolve(anchor(symbol, *expects))
