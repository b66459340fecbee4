package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	_ "image/gif" // its first frame is decoded
	"image/jpeg"
	_ "image/png" // is decoded

	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	// maxPixels bounds the memory that a picture's pixels take.
	maxPixels = 1 << 21 // Full HD has less
	// maxSide is the most pixels in a row that providers take, of many pictures.
	maxSide = 2000
	// maxScans bounds how often a JPEG draws all its pixels: a progressive one has about ten
	// scans, and each takes time, however short it is.
	maxScans = 64
)

// startOfScan is the marker before each scan of a JPEG. It cannot be in a scan's own data.
var startOfScan = []byte{0xFF, 0xDA}

// errNoPicture is what members and models read about data that is no picture.
var errNoPicture = errors.New("it is not a valid PNG, JPEG or GIF")

// pictureOf returns a server's picture as providers of models accept it: a PNG or JPEG by its
// content, whatever its label says, of at most tool.MaxImage bytes and maxSide pixels in a row. A
// larger one, or a GIF, is drawn again.
func (c *client) pictureOf(data []byte) (tool.File, error) {
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case err != nil || config.Width <= 0 || config.Height <= 0, format == "jpeg" && bytes.Count(data, startOfScan) > maxScans:
		return tool.File{}, errNoPicture
	case config.Width > maxPixels/config.Height:
		return tool.File{}, fmt.Errorf("it has %d × %d pixels, and at most %d are shown", config.Width, config.Height, maxPixels)
	}
	c.shrinking.Lock()
	defer c.shrinking.Unlock()
	decoded, _, err := image.Decode(bytes.NewReader(data)) // its head may be all that is valid
	if err != nil {
		return tool.File{}, errNoPicture
	}
	if format != "gif" && len(data) <= tool.MaxImage && max(config.Width, config.Height) <= maxSide {
		return tool.Image("image/"+format, data), nil
	}
	return shrink(decoded)
}

// shrink draws a picture as a JPEG of at most tool.MaxImage bytes: with less quality, and then
// with fewer pixels.
func shrink(from image.Image) (tool.File, error) {
	to := image.NewRGBA(image.Rectangle{Max: from.Bounds().Size()})
	draw.Draw(to, to.Rect, image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(to, to.Rect, from, from.Bounds().Min, draw.Over)
	for max(to.Rect.Dx(), to.Rect.Dy()) > maxSide {
		to = half(to)
	}
	for {
		for _, quality := range []int{80, 50} {
			var b bytes.Buffer
			if err := jpeg.Encode(&b, to, &jpeg.Options{Quality: quality}); err != nil {
				return tool.File{}, errNoPicture
			}
			if b.Len() <= tool.MaxImage {
				return tool.Image("image/jpeg", b.Bytes()), nil
			}
		}
		to = half(to)
	}
}

// half returns a picture of half the size, at least of one pixel: each pixel is the mean of four.
func half(from *image.RGBA) *image.RGBA {
	size := from.Rect.Size()
	to := image.NewRGBA(image.Rect(0, 0, max(size.X/2, 1), max(size.Y/2, 1)))
	for y := range to.Rect.Max.Y {
		for x := range to.Rect.Max.X {
			right, below := min(2*x+1, size.X-1), min(2*y+1, size.Y-1)
			for i := range 4 {
				sum := int(from.Pix[from.PixOffset(2*x, 2*y)+i]) + int(from.Pix[from.PixOffset(right, 2*y)+i]) +
					int(from.Pix[from.PixOffset(2*x, below)+i]) + int(from.Pix[from.PixOffset(right, below)+i])
				to.Pix[to.PixOffset(x, y)+i] = byte(sum / 4)
			}
		}
	}
	return to
}
