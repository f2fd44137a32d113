/* A backend of Triton that does nothing: each request is answered with the tensors of answer.h.
 *
 * answer.h is written by `benchmarks/model_servers.py` and defines `outputs`, an array of
 * `struct constant`.
 */

#include <string.h>

#include "triton_backend.h"

struct constant {
  const char *name;
  int datatype;
  uint32_t rank;
  const int64_t *shape;
  uint64_t size;
  const unsigned char *data;
};

#include "answer.h"

static error *answer(request *asked) {
  response *made = NULL;
  error *failure = TRITONBACKEND_ResponseNew(&made, asked);
  if (failure != NULL) return failure;
  for (size_t index = 0; failure == NULL && index < sizeof outputs / sizeof *outputs; index++) {
    const struct constant *each = &outputs[index];
    output *target = NULL;
    void *buffer = NULL;
    int memory_type = CPU;
    int64_t memory_number = 0;
    failure = TRITONBACKEND_ResponseOutput(made, &target, each->name, each->datatype, each->shape,
                                           each->rank);
    if (failure == NULL)
      failure = TRITONBACKEND_OutputBuffer(target, &buffer, each->size, &memory_type,
                                           &memory_number);
    if (failure == NULL) memcpy(buffer, each->data, each->size);
  }
  return TRITONBACKEND_ResponseSend(made, FINAL, failure);
}
