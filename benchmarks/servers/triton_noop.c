/* A backend of Triton that does nothing: each request is answered with the tensors of answer.h.
 *
 * answer.h is written by `benchmarks/model_servers.py` and defines `outputs`, an array of
 * `struct constant`. Only the part of Triton's C interface that is called is declared here; the
 * server itself has the functions.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct constant {
  const char *name;
  int datatype;
  uint32_t rank;
  const int64_t *shape;
  uint64_t size;
  const unsigned char *data;
};

#include "answer.h"

typedef void error, request, response, output, instance;

error *TRITONBACKEND_ResponseNew(response **made, request *to);
error *TRITONBACKEND_ResponseOutput(response *of, output **made, const char *name, int datatype,
                                    const int64_t *shape, uint32_t rank);
error *TRITONBACKEND_OutputBuffer(output *of, void **buffer, uint64_t size, int *memory_type,
                                  int64_t *memory_number);
error *TRITONBACKEND_ResponseSend(response *sent, uint32_t flags, error *failure);
error *TRITONBACKEND_RequestRelease(request *done, uint32_t flags);

enum { CPU = 0, FINAL = 1, ALL = 1 };

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

error *TRITONBACKEND_ModelInstanceExecute(instance *by, request **asked, const uint32_t count) {
  (void)by;
  for (uint32_t index = 0; index < count; index++) {
    error *failure = answer(asked[index]);
    if (failure != NULL) return failure;
    failure = TRITONBACKEND_RequestRelease(asked[index], ALL);
    if (failure != NULL) return failure;
  }
  return NULL;
}
