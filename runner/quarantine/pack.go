package quarantine

import (
	"bufio"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"underwrite/attest/gittree"
)

// Object types in a pack.
const (
	packCommit = 1
	packTree   = 2
	packBlob   = 3
)

// packBody collects the objects of a pack in a file: without deltas, each
// object once, in the order of their first appearance. The bytes depend on
// nothing but the objects (and this program's zlib).
type packBody struct {
	file  *os.File
	out   *bufio.Writer
	z     *zlib.Writer
	count uint32
	size  int64 // bytes of all complete objects
	seen  map[gittree.ID]bool
	limit int64 // bytes of the body
}

func newPackBody(file *os.File, limit int64) *packBody {
	p := &packBody{file: file, seen: map[gittree.ID]bool{}, limit: limit}
	p.out = bufio.NewWriterSize(counter{p}, 128<<10)
	p.z = zlib.NewWriter(p.out)
	return p
}

// counter writes to the file and refuses more than the limit.
type counter struct{ p *packBody }

func (c counter) Write(b []byte) (int, error) {
	n, err := c.p.file.Write(b)
	c.p.size += int64(n)
	if err == nil && c.p.size > c.p.limit {
		err = refuse("", "output bundle of more than %d bytes", c.p.limit)
	}
	return n, err
}

// add streams one object whose id follows from its content. An object that is
// there already is taken back.
func (p *packBody) add(kind byte, name string, size int64, content io.Reader) (gittree.ID, error) {
	start := p.size
	if _, err := p.out.Write(entryHeader(kind, size)); err != nil {
		return gittree.ID{}, err
	}
	p.z.Reset(p.out)
	h := sha256.New()
	fmt.Fprintf(h, "%s %d\x00", name, size)
	n, err := io.Copy(io.MultiWriter(h, p.z), io.LimitReader(content, size+1))
	if err != nil {
		return gittree.ID{}, err
	}
	if n != size {
		return gittree.ID{}, errChanged
	}
	if err := p.z.Close(); err != nil {
		return gittree.ID{}, err
	}
	if err := p.out.Flush(); err != nil {
		return gittree.ID{}, err
	}
	id := gittree.ID(h.Sum(nil))
	if p.seen[id] {
		return id, p.takeBack(start)
	}
	p.seen[id] = true
	p.count++
	return id, nil
}

func (p *packBody) takeBack(to int64) error {
	p.size = to
	if err := p.file.Truncate(to); err != nil {
		return err
	}
	_, err := p.file.Seek(to, io.SeekStart)
	return err
}

// entryHeader is the type and the size of an object, seven bits at a time but
// four in the first byte.
func entryHeader(kind byte, size int64) []byte {
	b := []byte{kind<<4 | byte(size&0x0f)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}

// writeTo writes the whole pack: header, body, checksum.
func (p *packBody) writeTo(w io.Writer) error {
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	h := sha256.New()
	both := io.MultiWriter(w, h)
	header := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), p.count)
	if _, err := both.Write(header); err != nil {
		return err
	}
	if n, err := io.Copy(both, p.file); err != nil {
		return err
	} else if n != p.size {
		return fmt.Errorf("pack body has %d bytes, not %d", n, p.size)
	}
	_, err := w.Write(h.Sum(nil))
	return err
}
