// SPDX-License-Identifier: Apache-2.0
/* pages_flush: see flush/pages_flush.h. */
#include "flush/pages_flush.h"

#include "base/log.h"
#include "flush/ordered.h"
#include "flush/pages_write.h"
#include "staging/stage.h"

#include <errno.h>

static int flush_cut(struct file *f)
{
	struct pages_write w;
	int r = pages_write_begin(f, &w);

	if (r < 0)
		return r;
	pages_write_pieces(f, &w);
	return pages_write_end(f, &w);
}

int pages_flush(struct file *f)
{
	int r;

	/* the bytes of a killed process of the family could not be recovered yet */
	if (f->needs_repair)
		return f->flush.error ? f->flush.error : -EIO;
	if (file_is_ordered(f))
		return ordered_drain(f);
	stage_count(f, f->bytes);
	f->bytes = 0;
	/* -EBUSY: an earlier cut that could not be written comes first */
	while ((r = overlay_cut(&f->overlay, false)) > 0 || r == -EBUSY) {
		r = flush_cut(f);
		if (r < 0)
			break;
	}
	if (r < 0) {
		if (f->flush.error == 0)
			log_warn("flush failed: error %d; the bytes stay staged", -r);
		f->flush.error = r;
		return r;
	}
	f->flush.error = 0;
	pages_all_written(f);
	return 0;
}
