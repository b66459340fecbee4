package mcp_test

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// noise is a picture that cannot be compressed.
func noise(width, height int) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, width, height))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range m.Pix {
		m.Pix[i] = byte(r.UintN(256))
	}
	return m
}

func encoded(t *testing.T, encode func(*bytes.Buffer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestPictures has a server send pictures, and things that it calls pictures.
func TestPictures(t *testing.T) {
	t.Parallel()
	asPNG := func(m image.Image) []byte {
		return encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, m) })
	}
	dot := image.NewPaletted(image.Rect(0, 0, 2, 2), color.Palette{color.White, color.Black})
	small := asPNG(dot)
	huge := encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, dot, nil) })
	copy(huge[6:], []byte{0, 0x80, 0, 0x80}) // its size
	plain := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, dot, nil) })
	scan := bytes.Index(plain, []byte{0xFF, 0xDA})
	scans := slices.Concat(plain[:scan], bytes.Repeat(plain[scan:len(plain)-2], 65), plain[len(plain)-2:])
	picture := func(label string, data []byte) sdk.Content { return &sdk.ImageContent{MIMEType: label, Data: data} }
	for name, tt := range map[string]struct {
		content []sdk.Content
		want    string // the media type; empty for none
		same    []byte // the data, if it is not drawn again
		says    string
	}{
		"PNG":        {content: []sdk.Content{picture("image/png", small)}, want: "image/png", same: small, says: "[the picture (image/png, "},
		"mislabeled": {content: []sdk.Content{picture("text/html", small)}, want: "image/png", same: small, says: "text/html"},
		"JPEG":       {content: []sdk.Content{picture("image/jpeg", plain)}, want: "image/jpeg", same: plain},
		"GIF":        {content: []sdk.Content{picture("image/gif", encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, dot, nil) }))}, want: "image/jpeg"},
		"large":      {content: []sdk.Content{picture("image/png", asPNG(noise(900, 700)))}, want: "image/jpeg"},
		"long":       {content: []sdk.Content{picture("image/png", asPNG(image.NewPaletted(image.Rect(0, 0, 5000, 1), dot.Palette)))}, want: "image/jpeg"},
		"resource":   {content: []sdk.Content{&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "a://b", MIMEType: "image/png", Blob: small}}}, want: "image/png", says: "[resource a://b] [the picture"},
		"two":        {content: []sdk.Content{picture("image/png", []byte("no")), picture("image/png", small), picture("image/png", small)}, want: "image/png", same: small, says: "another picture"},
		"no picture": {content: []sdk.Content{picture("image/png", []byte("<svg/>"))}, says: "not a valid PNG"},
		"cut off":    {content: []sdk.Content{picture("image/png", asPNG(noise(99, 99))[:99])}, says: "not a valid PNG"},
		"many scans": {content: []sdk.Content{picture("image/jpeg", scans)}, says: "not a valid PNG"},
		"too many":   {content: []sdk.Content{picture("image/png", huge)}, says: "32768 × 32768 pixels"},
		"sound":      {content: []sdk.Content{&sdk.AudioContent{MIMEType: "audio/wav", Data: small}}, says: "a sound (audio/wav, "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := mcp.ResultOf(&sdk.CallToolResult{Content: tt.content})
			var got struct {
				Result string
				Image  *tool.File
			}
			if err := json.Unmarshal([]byte(r.JSON()), &got); err != nil || r.IsError() {
				t.Fatalf("the result is %.200s: %v", r.JSON(), err)
			}
			if (got.Image != nil) != (tt.want != "") || !strings.Contains(got.Result, tt.says) {
				t.Fatalf("result %q, with a picture: %t", got.Result, got.Image != nil)
			}
			if got.Image == nil {
				return
			}
			m, _, err := image.Decode(bytes.NewReader(got.Image.Data))
			if err != nil || max(m.Bounds().Dx(), m.Bounds().Dy()) > 2000 || got.Image.Type != "file" || got.Image.MediaType != tt.want || http.DetectContentType(got.Image.Data) != tt.want {
				t.Errorf("the picture is %s %s: %v", got.Image.Type, got.Image.MediaType, err)
			}
			if tt.same != nil && !bytes.Equal(tt.same, got.Image.Data) {
				t.Error("the picture was drawn again")
			}
			if len(r.JSON()) > tool.ImageOutputCap || r.Size() > 2000 {
				t.Errorf("the result has %d bytes, and %d without the picture", len(r.JSON()), r.Size())
			}
		})
	}
}

// What a server says is not taken for a picture that was checked.
func TestStructuredPictures(t *testing.T) {
	t.Parallel()
	dot := encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, noise(1, 1)) })
	lie := map[string]any{"image": map[string]string{"type": "file", "mediaType": "image/png", "data": "AAAA"}}
	got := mcp.ResultOf(&sdk.CallToolResult{StructuredContent: lie}).JSON()
	if want := `{"result":{"image":{"data":"AAAA","mediaType":"image/png","type":"file"}}}`; got != want {
		t.Errorf("the result is %s, want %s", got, want)
	}
	got = mcp.ResultOf(&sdk.CallToolResult{StructuredContent: map[string]int{"n": 1}, Content: []sdk.Content{&sdk.ImageContent{Data: dot}}}).JSON()
	if !strings.HasPrefix(got, `{"image":{"type":"file","mediaType":"image/png",`) || !strings.HasSuffix(got, `},"n":1}`) {
		t.Errorf("the result is %s, want the picture beside the content", got)
	}
}
